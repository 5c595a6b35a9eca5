"""What a run of the fluid model leaves behind."""

from __future__ import annotations

from typing import NamedTuple

import torch

Tensor = torch.Tensor


class Means(NamedTuple):
    """Means over a step, or over the steps between two records; see `FluidPath`."""

    mean_rif: Tensor
    flow_rps: Tensor
    on_wire: Tensor
    served_rps: Tensor
    lost_rps: Tensor


class FluidPath(NamedTuple):
    """Records of a run; the last one is the state at its end, and means are over the steps between.

    Attributes:
        time_s: (records,), from 0 on.
        rif: N, (records, rows, cells).
        routing: x in force, (records, rows, roots, cells).
        span_s: (records - 1,), the time between two records.
        mean_rif: N, (records - 1, rows, cells).
        flow_rps: lambda_i x_ij as sent, (records - 1, rows, roots, cells).
        on_wire: Requests on their way there and back, (records - 1, rows, roots, cells). They count
            when they are sent, by the latencies of that moment, and not at all if a partition
            loses them.
        served_rps: mu_j, (records - 1, rows, cells).
        lost_rps: Rate of requests that a disturbance fails, (records - 1, rows).
    """

    time_s: Tensor
    rif: Tensor
    routing: Tensor
    span_s: Tensor
    mean_rif: Tensor
    flow_rps: Tensor
    on_wire: Tensor
    served_rps: Tensor
    lost_rps: Tensor

    @property
    def offered_rps(self) -> Tensor:
        """Mean rate of arrivals, (records - 1, rows)."""
        return self.flow_rps.sum(dim=(2, 3))

    @property
    def in_system(self) -> Tensor:
        """Mean requests in cells and on the wire, (records - 1, rows)."""
        return self.mean_rif.sum(dim=2) + self.on_wire.sum(dim=(2, 3))

    def latency_s(self, since_s: float = 0.0) -> Tensor:
        """Mean end-to-end latency of requests that are not lost, by Little's law, (rows,).

        The time that lost ones spend before they fail is on the others' account.

        Args:
            since_s: What lies before is left out.

        Raises:
            ValueError: Nothing lies after it, or no request of a row is answered.
        """
        after = self.time_s[:-1] >= since_s
        if not bool(after.any()):
            raise ValueError(
                f"since_s = {since_s} must come before the last span, which begins at "
                f"{float(self.time_s[-2]):g} s"
            )
        weight = torch.where(after, self.span_s, 0.0)[:, None]
        answered = (weight * (self.offered_rps - self.lost_rps)).sum(dim=0)
        for row in torch.nonzero(answered <= 0.0)[:1].flatten().tolist():
            raise ValueError(
                f"row {row} answers no requests after since_s = {since_s}, so they have no latency;"
                " look at an earlier time"
            )
        return (weight * self.in_system).sum(dim=0) / answered


class Recorder:
    """Collects a path, step by step.

    Args:
        step_s: Length of a step.
        every: Steps between records.

    Raises:
        ValueError: There would be no records.
    """

    def __init__(self, step_s: float, every: int) -> None:
        if every < 1:
            raise ValueError(f"record_every = {every} must be at least 1")
        self._step_s, self._every = step_s, every
        self._steps = 0
        self._times_s: list[float] = []
        self._states: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._sums: list[Means] = []
        self._counts: list[int] = []

    @property
    def is_due(self) -> bool:
        """Whether the state is recorded before the next step."""
        return self._steps % self._every == 0

    def keep(self, rif: Tensor, routing: Tensor) -> None:
        """Records the state."""
        self._times_s.append(self._step_s * self._steps)
        self._states[0].append(rif)
        self._states[1].append(routing)

    def add(self, means: Means) -> None:
        """Means over a step; ends it."""
        if self.is_due:
            self._sums.append(means)
            self._counts.append(1)
        else:
            pairs = zip(self._sums[-1], means, strict=True)
            self._sums[-1] = Means(*(total + new for total, new in pairs))
            self._counts[-1] += 1
        self._steps += 1

    def path(self) -> FluidPath:
        """The path, once the state at the end is kept."""
        like = self._states[0][0].detach()
        counts = torch.tensor(self._counts, dtype=like.dtype, device=like.device)
        means = Means(
            *(
                torch.stack(each) / counts.view(-1, *(1,) * each[0].ndim)
                for each in zip(*self._sums, strict=True)
            )
        )
        times_s = torch.tensor(self._times_s, dtype=like.dtype, device=like.device)
        rifs, routings = (torch.stack(each) for each in self._states)
        return FluidPath(times_s, rifs, routings, self._step_s * counts, *means)
