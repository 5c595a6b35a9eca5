"""What a run of the fluid model leaves behind."""

from __future__ import annotations

from typing import NamedTuple

import torch

Tensor = torch.Tensor


class FluidPath(NamedTuple):
    """Records of a run; the last one is the state at its end, and means are over the steps between.

    Attributes:
        time_s: (records,), from 0 on.
        rif: N, (records, rows, cells).
        routing: x in force, (records, rows, roots, cells).
        span_s: (records - 1,), the time between two records.
        mean_rif: N, (records - 1, rows, cells).
        flow_rps: lambda_i x_ij as sent, (records - 1, rows, roots, cells).
        served_rps: mu_j, (records - 1, rows, cells).
        lost_rps: Rate of requests that a disturbance fails, (records - 1, rows).
        travel_s: There and back, (rows, roots, cells): without what a latency shift adds.
    """

    time_s: Tensor
    rif: Tensor
    routing: Tensor
    span_s: Tensor
    mean_rif: Tensor
    flow_rps: Tensor
    served_rps: Tensor
    lost_rps: Tensor
    travel_s: Tensor

    @property
    def offered_rps(self) -> Tensor:
        """Mean rate of arrivals, (records - 1, rows)."""
        return self.flow_rps.sum(dim=(2, 3))

    @property
    def in_system(self) -> Tensor:
        """Mean requests in cells and on the wire, (records - 1, rows).

        A request counts for its way there and back when it is sent.
        """
        return self.mean_rif.sum(dim=2) + (self.flow_rps * self.travel_s).sum(dim=(2, 3))

    def latency_s(self, since_s: float = 0.0) -> Tensor:
        """Mean end-to-end latency by Little's law, (rows,).

        Args:
            since_s: What lies before is left out.

        Raises:
            ValueError: Nothing lies after it.
        """
        after = self.time_s[:-1] >= since_s
        if not bool(after.any()):
            raise ValueError(
                f"since_s = {since_s} must come before the last span, which begins at "
                f"{float(self.time_s[-2]):g} s"
            )
        weight = torch.where(after, self.span_s, 0.0)[:, None]
        return (weight * self.in_system).sum(dim=0) / (weight * self.offered_rps).sum(dim=0)


class Recorder:
    """Collects a path, step by step.

    Args:
        step_s: Length of a step.
        every: Steps between records.
        travel_s: See `FluidPath`.
    """

    def __init__(self, step_s: float, every: int, travel_s: Tensor) -> None:
        if every < 1:
            raise ValueError(f"record_every = {every} must be at least 1")
        self._step_s, self._every, self._travel_s = step_s, every, travel_s
        self._steps = 0
        self._times_s: list[float] = []
        self._states: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._sums: list[list[Tensor]] = []
        self._counts: list[int] = []

    def keep(self, rif: Tensor, routing: Tensor) -> None:
        """The state at the start of a step, where it is to be recorded."""
        if self._steps % self._every == 0:
            self._keep(rif, routing)

    def add(self, *means: Tensor) -> None:
        """Means over the step, in the order of `FluidPath`; ends it."""
        if self._steps % self._every == 0:
            self._sums.append(list(means))
            self._counts.append(1)
        else:
            self._sums[-1] = [old + new for old, new in zip(self._sums[-1], means, strict=True)]
            self._counts[-1] += 1
        self._steps += 1

    def path(self, rif: Tensor, routing: Tensor) -> FluidPath:
        """The path, given the state at the end."""
        self._keep(rif, routing)
        like = rif.detach()
        counts = torch.tensor(self._counts, dtype=like.dtype, device=like.device)
        mean_rif, flow_rps, served_rps, lost_rps = (
            torch.stack(each) / counts.view(-1, *(1,) * each[0].ndim)
            for each in zip(*self._sums, strict=True)
        )
        times_s = torch.tensor(self._times_s, dtype=like.dtype, device=like.device)
        rifs, routings = (torch.stack(each) for each in self._states)
        return FluidPath(
            times_s,
            rifs,
            routings,
            self._step_s * counts,
            mean_rif,
            flow_rps,
            served_rps,
            lost_rps,
            self._travel_s,
        )

    def _keep(self, rif: Tensor, routing: Tensor) -> None:
        self._times_s.append(self._step_s * self._steps)
        self._states[0].append(rif)
        self._states[1].append(routing)
