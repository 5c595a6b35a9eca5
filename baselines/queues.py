"""Classical rules on queues: each looks at how many requests are where.

Cell j has k_j servers, N_j requests in flight by the probe held, the largest rate mu_j = k_j /
beta_j (see `latency_model`), and o_ij of root i's own requests outstanding; n_j counts those sent
since the decision, so the rules decide per request (`score` dispatch). A server serves about `knee`
requests at once before any waits: what the literature calls an idle server is here an idle place,
of which cell j has k_j max(knee_j - N_j / k_j, 0).

The rules were made for servers at no distance: none but `MaxWeight` reads a round trip.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baselines.costs import Fields
from dlb_gym.decision import Array, Decision, Mask
from dlb_gym.policy import Information, Policy, proportional, split_ties
from dlb_gym.reductions import ordered_sum


class FewestConnections(Policy):
    """To the cell with the fewest own requests outstanding: argmin_j o_ij + n_j.

    Weighted, argmin_j (o_ij + n_j) / mu_j: least_conn of nginx and `wlc` of LVS, which compare
    connections over weight before the new one is counted. Answers that come between two decisions
    count from the next one on.

    Args:
        weighted: Divide by the rate.
    """

    information: Information = "local"

    def __init__(self, weighted: bool = False) -> None:
        self.weighted = weighted
        self.name = "weighted-fewest" if weighted else "fewest"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Own requests outstanding, and one more for every request sent."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        servers = _servers(fields)
        outstanding = np.rint(fields["outstanding"] * servers)
        each = _per_rate(fields, servers) if self.weighted else np.ones_like(servers)
        return _scores(outstanding * each, each, arcs)


class ShortestQueue(Policy):
    """JSQ, join the shortest queue: argmin_j N_j + n_j (Winston 1977; Foschini and Salz 1978)."""

    name = "jsq"
    information: Information = "local"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Requests in flight by the probe held, and own ones since."""
        fields = self.fields(observation)
        servers = _servers(fields)
        requests = np.rint(fields["rif"] * servers)
        return _scores(requests, np.ones_like(servers), fields["admissible"] > 0.0)


class ShortestExpectedDelay(Policy):
    """SED: argmin_j (N_j + n_j + 1) / mu_j (Whitt 1986), the classical rule without a network."""

    name = "sed"
    information: Information = "local"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Time until the cell would have served what it holds and one request more."""
        fields = self.fields(observation)
        servers = _servers(fields)
        requests = np.rint(fields["rif"] * servers)
        each = _per_rate(fields, servers)
        return _scores((requests + 1.0) * each, each, fields["admissible"] > 0.0)


class MaxWeight(Policy):
    """Max-weight with a penalty: argmin_j (N_j + n_j) / mu_j + V 2 tau_ij.

    Max-weight (Tassiulas and Ephremides 1992) routes to the largest difference of queues, weighted
    with rates; roots hold no queue here, so what is left is the cell's own, as a time. Neely's
    drift plus penalty (2010) adds V times a cost, here the round trip.

    Args:
        penalty: V >= 0; 1 adds time to time.

    Raises:
        ValueError: V is negative or not finite.
    """

    name = "max-weight"
    information: Information = "local"

    def __init__(self, penalty: float = 1.0) -> None:
        if not 0.0 <= penalty < np.inf:
            raise ValueError(f"penalty = {penalty} must be finite and at least 0; 1 is the default")
        self.penalty = penalty

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Time to serve what the cell holds, and V round trips."""
        fields = self.fields(observation)
        servers = _servers(fields)
        each = _per_rate(fields, servers)
        waiting = np.rint(fields["rif"] * servers) * each
        return _scores(waiting + self.penalty * fields["rtt"], each, fields["admissible"] > 0.0)


class IdleQueue(Policy):
    """JIQ, join an idle queue (Lu et al. 2011): x_ij proportional to the idle places of cell j.

    All roots see the same idle places; an idle server of JIQ tells one dispatcher alone. Where no
    cell has any, the split by capacity: JIQ then chooses at random.
    """

    name = "jiq"
    information: Information = "local"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Split over idle places."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        idle = np.where(arcs, _idle_places(fields), 0.0)
        any_idle = ordered_sum(idle, keepdims=True) > 0.0
        capacity = fields["capacity_load"].astype(np.float64)
        return Decision(proportional(np.where(any_idle, idle, capacity), arcs))


class PowerOfCells(Policy):
    """The best of d cells drawn at random without replacement (Mitzenmacher; Vvedenskaya et al.).

    Best is the least N_j / k_j. As a routing vector: of n arcs let a of them be strictly better
    than j, and b as good as j, itself included. The best of the sample is among those b with
    probability (C(n - a, d) - C(n - a - b, d)) / C(n, d), and j gets its b-th part.

    Args:
        cells: d >= 1; as many as there are where there are fewer.

    Raises:
        ValueError: d is below 1.
    """

    information: Information = "local"

    def __init__(self, cells: int = 2) -> None:
        if cells < 1:
            raise ValueError(f"cells = {cells} must be at least 1; 2 is the default")
        self.cells = cells
        self.name = f"power-of-{cells}-cells"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """The chance of each cell to be the best of a sample."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        load = np.where(arcs, fields["rif"], np.inf)
        better, as_good = np.zeros(arcs.shape, np.int64), np.zeros(arcs.shape, np.int64)
        for other in range(arcs.shape[-1]):
            better += load[..., other, None] < load
            as_good += (load[..., other, None] == load) & arcs[..., other, None]
        as_good = np.maximum(as_good, 1)
        count = np.count_nonzero(arcs, axis=-1, keepdims=True)
        none_better = self._all_among(count - better, count)
        chance = none_better - self._all_among(count - better - as_good, count)
        return Decision(proportional(np.where(arcs, chance / as_good, 0.0), arcs))

    def _all_among(self, some: NDArray[np.int64], count: NDArray[np.int64]) -> Array:
        """C(some, d) / C(count, d): the chance that a whole sample is among `some` of `count`."""
        chance = np.ones(some.shape)
        for drawn in range(self.cells):
            left = np.maximum(count - drawn, 1)
            chance *= np.where(drawn < count, np.maximum(some - drawn, 0) / left, 1.0)
        return chance


class FastestShortest(Policy):
    """JFSQ, the fastest of the shortest queues, among a root's arcs (Weng, Zhou, Srikant 2020).

    A cell's shortest queue has floor(N_j / k_j) requests, if its leaf keeps it balanced. Among the
    cells where that is least, everything goes to the least service time alpha_j.
    """

    name = "jfsq"
    information: Information = "local"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """One-hot, but for cells that are equal in both."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        length = np.where(arcs, np.floor(fields["rif"]), np.inf)
        shortest = arcs & (length == length.min(axis=-1, keepdims=True))
        return Decision(split_ties(fields["model_alpha"].astype(np.float64), shortest))


class FastestIdle(Policy):
    """JFIQ, the fastest cell with an idle place, among a root's arcs (Weng, Zhou, Srikant 2020).

    Everything goes to the least service time alpha_j among them. Where no cell has an idle place,
    the split by servers: JFIQ then chooses at random.
    """

    name = "jfiq"
    information: Information = "local"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """One-hot, but for cells that are equally fast."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        idle = arcs & (_idle_places(fields) > 0.0)
        fastest = split_ties(fields["model_alpha"].astype(np.float64), idle)
        anywhere = proportional(fields["servers"].astype(np.float64), arcs)
        return Decision(np.where(idle.any(axis=-1, keepdims=True), fastest, anywhere))


def _servers(fields: Fields) -> Array:
    """k_j by the probe held, whole numbers; 1 where there is no arc."""
    weight = fields["request_weight"].astype(np.float64)
    return np.rint(1.0 / np.where(weight > 0.0, weight, 1.0))


def _per_rate(fields: Fields, servers: Array) -> Array:
    """1 / mu_j = beta_j / k_j, in zero-load times."""
    each: Array = fields["model_beta"] / servers
    return each


def _idle_places(fields: Fields) -> Array:
    """k_j max(knee_j - N_j / k_j, 0)."""
    room = fields["model_knee"].astype(np.float64) - fields["rif"]
    places: Array = np.maximum(room, 0.0) * _servers(fields)
    return places


def _scores(base: Array, slope: Array, arcs: Mask) -> Decision:
    """Scores on the arcs, zero elsewhere."""
    return Decision(base=np.where(arcs, base, 0.0), slope=np.where(arcs, slope, 0.0))
