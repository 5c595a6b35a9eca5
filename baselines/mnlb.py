"""MNLB, the centralised balancer the paper replaces: a linear program every ten seconds."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baselines.costs import Fields
from baselines.mnlb_program import least_network_latency
from dlb_gym.decision import Array, Decision, Mask
from dlb_gym.policy import Information, Policy, TaskSpec, proportional

HEADROOM = 0.85
PERIOD_S = 10.0


class _Plan(NamedTuple):
    """Weights (roots, cells) and the interval from which they are in force."""

    due: int
    weights: Array


class MNLB(Policy):
    """Weights of least network latency subject to capacity (theory.md section 6; paper 1.1, 6).

    Every `period_s`, each root reports its arrivals averaged over the period and the live servers
    of its newest probes. The report reaches the optimiser after the largest one-way latency of the
    network, the weights come into force after as much again; both delays are rounded up to control
    intervals. Where roots report different server counts of a cell, the freshest probe counts.
    Before an episode's first solution, roots split by capacity.

    The paper gives the objective and the period; the linear program is in `mnlb_program`.

    Args:
        headroom: Share of a cell's nominal rate the plan may fill.
        period_s: Time between solutions, rounded to control intervals.
        arrival_noise: Each root's arrival estimate is off by a factor drawn evenly from
            1 - arrival_noise to 1 + arrival_noise at each solution.

    Raises:
        ValueError: An argument is out of range.
    """

    information: Information = "central"

    def __init__(
        self, headroom: float = HEADROOM, period_s: float = PERIOD_S, arrival_noise: float = 0.0
    ) -> None:
        for key, value in (("headroom", headroom), ("period_s", period_s)):
            if not 0.0 < value < np.inf:
                raise ValueError(f"{key} = {value} must be finite and above 0; leave it out")
        if not 0.0 <= arrival_noise < 1.0:
            raise ValueError(f"arrival_noise = {arrival_noise} must lie in [0, 1); 0 turns it off")
        self.headroom, self.period_s, self.arrival_noise = headroom, period_s, arrival_noise
        self.name = "mnlb" if headroom == HEADROOM else f"mnlb-{100 * headroom:g}"

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        """Start anew for a batch."""
        super().reset(spec, num_replications, seed)
        self._routing = np.zeros((num_replications, spec.num_roots, spec.num_cells))
        self._arrivals = np.zeros((num_replications, spec.num_roots))
        self._capacity = np.zeros((num_replications, spec.num_cells))
        self._interval = np.full(num_replications, -1)
        self._plans: list[deque[_Plan]] = [deque() for _ in range(num_replications)]
        self._noise = [_noise_stream(seed + row) for row in range(num_replications)]

    def restart(self, rows: Mask) -> None:
        """Forget reports and plans of these rows; their noise repeats from its seed."""
        self._interval[rows] = -1
        for row in np.flatnonzero(rows).tolist():
            self._plans[row].clear()
            self._noise[row] = _noise_stream(self._seed + row)

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """The weights in force; collects arrivals and solves where a period ends."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        self._interval += 1
        first = self._interval == 0
        if first.any():
            split = proportional(fields["capacity_load"].astype(np.float64), arcs)
            self._routing = np.where(first[:, None, None], split, self._routing)
        own = np.max(np.where(arcs, fields["arrival_load"], 0.0), axis=-1)
        self._arrivals = np.where(first[:, None], 0.0, self._arrivals + own)
        capacity = _freshest(fields["capacity_load"], fields["probe_age"], arcs)
        self._capacity = np.where(first[:, None], 0.0, self._capacity + capacity)
        period, delay = self._intervals(fields, arcs)
        ends = (self._interval > 0) & (self._interval % period == 0)
        for row in np.flatnonzero(ends).tolist():
            self._solve(row, int(period[row]), int(delay[row]), fields, arcs)
        self._put_in_force()
        return Decision(self._routing)

    def _intervals(self, fields: Fields, arcs: Mask) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Control intervals in a period and in the largest one-way latency, each (n,), >= 1."""
        interval = np.max(np.where(arcs, fields["control_interval"], 0.0), axis=(1, 2))
        unit_s = np.max(np.where(arcs, fields["zero_load_time_s"], 0.0), axis=(1, 2))
        one_way = 0.5 * np.max(np.where(arcs, fields["rtt"], 0.0), axis=(1, 2))
        period = np.rint(self.period_s / (interval.astype(np.float64) * unit_s))
        delay = np.ceil(one_way / interval)
        return np.maximum(period, 1).astype(np.int64), np.maximum(delay, 1).astype(np.int64)

    def _solve(self, row: int, period: int, delay: int, fields: Fields, arcs: Mask) -> None:
        """Plan one replication from the reports of the period that ends now."""
        arrivals = self._arrivals[row] / period
        capacity = self._capacity[row] / period
        self._arrivals[row] = 0.0
        self._capacity[row] = 0.0
        if self.arrival_noise > 0.0:
            wobble = self._noise[row].uniform(-1.0, 1.0, arrivals.shape)
            arrivals = arrivals * (1.0 + self.arrival_noise * wobble)
        weights = proportional(np.broadcast_to(capacity, arcs[row].shape), arcs[row])
        if arrivals.any() and capacity.any():
            weights = least_network_latency(
                arrivals=arrivals,
                capacity=capacity,
                rtt=fields["rtt"][row].astype(np.float64),
                admissible=arcs[row],
                headroom=self.headroom,
            )
        self._plans[row].append(_Plan(int(self._interval[row]) + 2 * delay, weights))

    def _put_in_force(self) -> None:
        """Adopt the plans that are due, in a new array: earlier decisions stay as they were."""
        for row, plans in enumerate(self._plans):
            while plans and plans[0].due <= self._interval[row]:
                self._routing = self._routing.copy()
                self._routing[row] = plans.popleft().weights


def _noise_stream(seed: int) -> np.random.Generator:
    """A stream apart from those that draw the workload from the same seed."""
    return np.random.default_rng([seed, int.from_bytes(b"mnlb")])


def _freshest(field: NDArray[np.float32], age: NDArray[np.float32], arcs: Mask) -> Array:
    """Each cell's value as the root with the freshest probe of it knows it, shape (n, cells)."""
    root = np.argmin(np.where(arcs, age, np.inf), axis=1, keepdims=True)
    freshest: Array = np.take_along_axis(field, root, axis=1)[:, 0].astype(np.float64)
    return freshest
