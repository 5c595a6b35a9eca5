"""Delays on a grid of steps: what was sent arrives later, what is seen is older.

A delay of d steps, d = m + w with whole m and 0 <= w < 1, splits what leaves during step n between
the steps n + m and n + m + 1, as 1 - w to w: exact where the flow is constant within steps, so that
nothing is lost on the way, and of second order where it is smooth. What a root sees at step n is
interpolated between the reports of the steps n - m and n - m - 1.

Both write new tensors and change none, so gradients pass, also those by the delays themselves.
"""

from __future__ import annotations

import torch

from dlb_gym.fluid.schedule import Spans

Tensor = torch.Tensor

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
        self.part = (steps - whole).clamp(min=0.0)
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
        self._due = like.new_zeros((longest + 2, *like.shape))

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
        due = self._due.view(-1).index_add(0, lag.due, (flow - later).reshape(-1))
        due = due.index_add(0, lag.later, later.reshape(-1)).view_as(self._due)
        self._due = torch.cat((due[1:], torch.zeros_like(due[:1])))
        return due[0]

    def fill(self, flow: Tensor, lag: Lag) -> None:
        """What is on its way if `flow` has always been sent."""
        ahead = torch.arange(len(self._due), device=flow.device).view(-1, 1, 1, 1)
        share = torch.where(ahead == lag.whole, lag.part, (ahead < lag.whole).to(flow.dtype))
        self._due = (share * flow).sum(dim=2)

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
        self._past = first.expand(longest + 2, *first.shape)

    def add(self, report: Tensor) -> None:
        """The report of the next step."""
        self._past = torch.cat((self._past[1:], report[None]))

    def seen(self, lag: Lag, newest: Tensor | None = None) -> Tensor:
        """What roots see, (rows, roots, cells, numbers).

        Args:
            lag: Ages.
            newest: The report of the next step, where that is looked at.
        """
        past = self._past if newest is None else torch.cat((self._past[1:], newest[None]))
        flat = past.flatten(0, 2)
        shape = (*lag.whole.shape, past.shape[-1])
        late = flat.index_select(0, lag.late).view(shape)
        older = flat.index_select(0, lag.older).view(shape)
        return torch.lerp(late, older, lag.part[..., None])
