"""Delays on a grid of steps: what was sent arrives later, what is seen is older.

A delay of d steps, d = m + w with whole m and 0 <= w < 1, splits what leaves during step n between
the steps n + m and n + m + 1, as 1 - w to w: exact where the flow is constant within steps, so that
nothing is lost on the way, and of second order where it is smooth. What a root sees at step n is
interpolated between the reports of the steps n - m and n - m - 1.

Gradients pass, also those by the delays themselves: where one is asked for, tensors are made anew.
Otherwise they are changed, in a window that slides along a page.
"""

from __future__ import annotations

import torch

from dlb_gym.fluid.schedule import Spans

Tensor = torch.Tensor

AHEAD = 256
"""Steps for which a page has room."""
ROUNDING = 1e-9
"""Steps by which a delay may miss a whole number of them through rounding alone."""


class Lag:
    """Delays of arcs on the grid, and where in the buffers they point.

    Args:
        steps: Delays, at least 0 steps, (rows, roots, cells); 0 where there is no arc.
        longest: That the buffers provide for.
    """

    def __init__(self, steps: Tensor, longest: int) -> None:
        whole = torch.floor(steps.detach() + ROUNDING)
        self.whole = whole.to(torch.int64)
        part = steps - whole
        self.part = part + (-part.detach()).clamp(min=0.0)  # rounding below 0 keeps its gradient
        rows, _, cells = steps.shape
        size = rows * cells
        place = torch.arange(size, device=steps.device).view(rows, 1, cells)
        self.due = (self.whole * size + place).reshape(-1)
        self.later = self.due + size
        self.late = ((longest + 1 - self.whole) * size + place).reshape(-1)
        self.older = self.late - size


class Spanned:
    """Delays that depend on when a message departs (see `schedule.Spans`).

    Args:
        spans: Of departure times.
        delay_s: Without the extras, (rows, roots, cells), NaN where there is no arc.
    """

    def __init__(self, spans: Spans, delay_s: Tensor) -> None:
        def tensor(array: object) -> Tensor:
            return torch.as_tensor(array, dtype=delay_s.dtype, device=delay_s.device)

        self._start_s, self._end_s = tensor(spans.start_s), tensor(spans.end_s)
        self._delay_s = torch.nan_to_num(delay_s)[..., None] + tensor(spans.extra_s)

    def sent_at(self, time_s: float) -> Tensor:
        """Delay of what departs now, infinite where it is lost, (rows, roots, cells)."""
        inside = (self._start_s <= time_s) & (time_s < self._end_s)
        return torch.where(inside, self._delay_s, 0.0).sum(dim=-1)

    def seen_at(self, time_s: float) -> Tensor:
        """Age of the newest report that has arrived: the latest departure, by spans."""
        departure_s = torch.minimum(time_s - self._delay_s, self._end_s)
        arrived = torch.where(departure_s >= self._start_s, departure_s, -torch.inf)
        return time_s - arrived.amax(dim=-1)


class Journeys:
    """Requests on their way to cells.

    Args:
        longest: Delay that occurs, steps, rounded up.
        like: (rows, cells), of the dtype and device.
    """

    def __init__(self, longest: int, like: Tensor) -> None:
        self._length = longest + 2
        self._page = like.new_zeros((self._length, *like.shape))
        self._start = 0

    @property
    def _due(self) -> Tensor:
        """What arrives in this step and in the next ones."""
        return self._page[self._start : self._start + self._length]

    def fill(self, flow: Tensor, lag: Lag) -> None:
        """What is on its way if `flow` has always been sent."""
        ahead = torch.arange(self._length, device=flow.device).view(-1, 1, 1, 1)
        share = torch.where(ahead == lag.whole, lag.part, (ahead < lag.whole).to(flow.dtype))
        self._page, self._start = (share * flow).sum(dim=2), 0

    def arriving(self, flow: Tensor, lag: Lag) -> Tensor:
        """What arrives in this step if `flow` (rows, roots, cells) is sent in it; (rows, cells)."""
        now = torch.where(lag.whole == 0, (1.0 - lag.part) * flow, 0.0)
        return self._due[0] + now.sum(dim=1)

    def send(self, flow: Tensor, lag: Lag) -> Tensor:
        """Sends `flow`, and moves on by a step.

        Returns:
            What arrived in this step, (rows, cells).
        """
        later = lag.part * flow
        parts = (lag.due, (flow - later).reshape(-1)), (lag.later, later.reshape(-1))
        if _is_followed(flow, lag.part, self._page):
            due = self._due.flatten()
            for place, part in parts:
                due = due.index_add(0, place, part)
            due = due.view_as(self._due)
            self._page, self._start = torch.cat((due[1:], torch.zeros_like(due[:1]))), 0
            return due[0]
        if self._start + self._length >= len(self._page):
            self._page, self._start = _with_room(self._due), 0
        due = self._due.view(-1)
        for place, part in parts:
            due.index_add_(0, place, part)
        self._start += 1
        return self._page[self._start - 1]

    @property
    def total(self) -> Tensor:
        """Flow that is due, summed over steps, (rows,)."""
        return self._due.sum(dim=(0, 2))


class Reports:
    """What cells reported at the last steps.

    Args:
        longest: Age that occurs, steps, rounded up.
        first: (rows, cells, numbers): the report of now and of all times before.
    """

    def __init__(self, longest: int, first: Tensor) -> None:
        self._length = longest + 2
        self._page = first.expand(self._length, *first.shape)
        self._end = self._length

    @property
    def _past(self) -> Tensor:
        return self._page[self._end - self._length : self._end]

    def add(self, report: Tensor) -> None:
        """The report of the next step."""
        if _is_followed(report, self._page):
            self._page, self._end = self._then(report), self._length
            return
        if self._end == len(self._page):
            self._page, self._end = _with_room(self._past), self._length
        self._page[self._end] = report
        self._end += 1

    def seen(self, lag: Lag, newest: Tensor | None = None) -> Tensor:
        """What roots see, (rows, roots, cells, numbers).

        Args:
            lag: Ages.
            newest: The report of the next step, where that is looked at.
        """
        past = self._past if newest is None else self._then(newest)
        numbers = past.shape[-1]
        # One number is looked up several times faster without an axis of its own.
        flat = past.flatten() if numbers == 1 else past.flatten(0, 2)
        shape = (*lag.whole.shape, numbers)
        late = flat.index_select(0, lag.late).view(shape)
        older = flat.index_select(0, lag.older).view(shape)
        return torch.lerp(late, older, lag.part[..., None])

    def _then(self, report: Tensor) -> Tensor:
        """The past, a step later."""
        return torch.cat((self._past[1:], report[None]))


def _is_followed(*tensors: Tensor) -> bool:
    """Whether gradients pass: then tensors are made anew instead of changed."""
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def _with_room(window: Tensor) -> Tensor:
    """The window on a page with room for more steps behind it."""
    return torch.cat((window, window.new_zeros((AHEAD, *window.shape[1:]))))
