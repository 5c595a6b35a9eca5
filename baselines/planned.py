"""Central policies that plan now and then, from what roots report of a whole period."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baselines.costs import Fields
from dlb_gym.decision import Array, Decision, Mask
from dlb_gym.policy import Information, Policy, TaskSpec, proportional

PERIOD_S = 10.0


class Reports(NamedTuple):
    """What a plan is made from, of one replication.

    Attributes:
        arrivals: Mean arrival rate of every root over the period, (roots,).
        capacity: Mean nominal rate of every cell's live servers, (cells,), in the same unit.
        rtt: Round trips in zero-load times, (roots, cells).
        zero_load_time_s: Their unit.
        arcs: Boolean, (roots, cells).
    """

    arrivals: Array
    capacity: Array
    rtt: Array
    zero_load_time_s: float
    arcs: Mask


class _Plan(NamedTuple):
    """Weights (roots, cells) and the interval from which they are in force."""

    due: int
    weights: Array


class Planned(Policy):
    """Weights that a central optimiser plans every `period_s`.

    Each root reports its arrivals averaged over the period and the live servers of its newest
    probes. The report reaches the optimiser after the largest one-way latency of the network, the
    weights come into force after as much again; both delays are rounded up to control intervals.
    Where roots report different server counts of a cell, the freshest probe counts. Before an
    episode's first plan, roots split by capacity.

    Args:
        period_s: Time between plans, rounded to control intervals.

    Raises:
        ValueError: It is not positive and finite.
    """

    information: Information = "central"

    def __init__(self, period_s: float = PERIOD_S) -> None:
        require_positive("period_s", period_s)
        self.period_s = period_s

    @abstractmethod
    def plan(self, row: int, reports: Reports) -> Array:
        """The weights of replication `row`; some root has traffic and some cell capacity.

        Returns:
            (roots, cells), rows on the simplex over their arcs.
        """

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        """Start anew for a batch."""
        super().reset(spec, num_replications, seed)
        self._routing = np.zeros((num_replications, spec.num_roots, spec.num_cells))
        self._arrivals = np.zeros((num_replications, spec.num_roots))
        self._capacity = np.zeros((num_replications, spec.num_cells))
        self._interval = np.full(num_replications, -1)
        self._plans: list[deque[_Plan]] = [deque() for _ in range(num_replications)]

    def restart(self, rows: Mask) -> None:
        """Forget reports and plans of these rows."""
        self._interval[rows] = -1
        for row in np.flatnonzero(rows).tolist():
            self._plans[row].clear()

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """The weights in force; collects arrivals and plans where a period ends."""
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
        reports = Reports(
            arrivals=self._arrivals[row] / period,
            capacity=self._capacity[row] / period,
            rtt=fields["rtt"][row].astype(np.float64),
            zero_load_time_s=float(fields["zero_load_time_s"][row].max()),
            arcs=arcs[row],
        )
        self._arrivals[row] = 0.0
        self._capacity[row] = 0.0
        if reports.arrivals.any() and reports.capacity.any():
            weights = self.plan(row, reports)
        else:
            capacity = np.broadcast_to(reports.capacity, reports.arcs.shape)
            weights = proportional(capacity, reports.arcs)
        self._plans[row].append(_Plan(int(self._interval[row]) + 2 * delay, weights))

    def _put_in_force(self) -> None:
        """Adopt the plans that are due, in a new array: earlier decisions stay as they were."""
        for row, plans in enumerate(self._plans):
            while plans and plans[0].due <= self._interval[row]:
                self._routing = self._routing.copy()
                self._routing[row] = plans.popleft().weights


def require_positive(key: str, value: float) -> None:
    """Refuses an argument that is not positive and finite.

    Raises:
        ValueError: It is not.
    """
    if not 0.0 < value < np.inf:
        raise ValueError(f"{key} = {value} must be finite and above 0; leave it out")


def _freshest(field: NDArray[np.float32], age: NDArray[np.float32], arcs: Mask) -> Array:
    """Each cell's value as the root with the freshest probe of it knows it, shape (n, cells)."""
    root = np.argmin(np.where(arcs, age, np.inf), axis=1, keepdims=True)
    freshest: Array = np.take_along_axis(field, root, axis=1)[:, 0].astype(np.float64)
    return freshest
