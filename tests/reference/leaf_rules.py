"""The rules by which leaves choose servers (``docs/leaf_rules.md`` and the engine's docstrings).

Every leaf replica is a router of its own: it counts its own requests and holds its own probes. What
it knows of the servers otherwise is what ``Leaves`` says.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dlb_gym.mechanisms import Leaf
from tests.batching_model import uniform
from tests.reference.affinity import hashed_server
from tests.reference.leaves import Leaves
from tests.reference.servers import Server
from tests.reference.system import Books, Request
from tests.reference_choices import choose_server

DRAWING, PROBING, REUSING, REHASHING = (k * 2**33 for k in (16, 17, 18, 19))
"""Purposes of draws."""
BUCKETS = 16
REMEMBERED_RIFS = 64
REMEMBERED_LATENCIES = 16
BLIND = ("tokens", "random", "round_robin", "least_requests", "ray", "prequal")
"""Rules that do not look at sessions: affinity may still take a request back to its prefix."""


@dataclass
class Probe:
    """What a server said, and how often it may yet decide."""

    server: int
    rif: int
    latency_s: float
    sent_s: float
    uses: float


class Replica:
    """What one leaf replica remembers."""

    def __init__(self) -> None:
        self.requests = 0
        self.sent: list[tuple[int, int, int]] = []  # bucket, server, amount
        self.pool: list[Probe] = []
        self.rifs: list[int] = []

    def sum_of(self, server: int, bucket: int) -> int:
        """What it sent to a server in this bucket and the 15 before."""
        self.sent = [each for each in self.sent if each[0] > bucket - BUCKETS]
        return sum(amount for _, s, amount in self.sent if s == server)


def default_of(leaf: Leaf, key: str) -> float:
    """Where the scenario leaves a number open."""
    value = getattr(leaf, key)
    if value is not None:
        return float(value)
    return {
        ("window_s", "vllm"): 60.0, ("window_s", "preble"): 180.0,
        ("imbalance_gap", "sglang"): 64.0, ("imbalance_gap", "aibrix"): 8.0,
        ("imbalance_factor", "sglang"): 1.5, ("imbalance_factor", "aibrix"): 2.0,
    }[key, leaf.rule]  # fmt: skip


class LeafRules:
    """Chooses servers in one cell.

    Args:
        leaf: The scenario's rule.
        seed: Of the hashes.
        prefill_s: Of a prompt token.
        replicas: How many leaf replicas.
        servers: All that the cell has had so far.
        leaves: What its leaves know of them.
        books: Of the run.
    """

    def __init__(
        self,
        leaf: Leaf,
        seed: int,
        prefill_s: float,
        replicas: int,
        servers: Sequence[Server],
        leaves: Leaves,
        books: Books,
    ) -> None:
        self._leaf = leaf
        self._seed = seed
        self._prefill_s = prefill_s
        self._servers = servers
        self._leaves = leaves
        self._books = books
        self._replicas = [Replica() for _ in range(replicas)]
        self._others: dict[Request, int] = {}
        self._finished: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        self.blind = leaf.rule in BLIND

    # -- what happens -----------------------------------------------------------------------

    def crash(self, replica: int) -> None:
        self._replicas[replica] = Replica()

    def crash_server(self, server: int) -> None:
        self._finished[server] = []

    def finish(self, request: Request, took_s: float) -> None:
        if self._leaf.rule == "prequal":
            self._finished[request.server].append((self._others.pop(request), took_s))

    def sent(self, request: Request, chosen: int, live: int, now_s: float) -> None:
        """A request goes to a server, which may yet refuse it."""
        if self._leaf == Leaf():
            return
        replica = self._replicas[request.replica]
        self._others[request] = self._servers[chosen].requests
        if self._leaf.rule == "vllm":
            replica.sent.append((self._bucket(now_s), chosen, 1))
        if self._leaf.rule == "preble":
            work = request.prompt - request.hit + request.output
            replica.sent.append((self._bucket(now_s), chosen, work))
        if self._leaf.rule == "prequal":
            self._probe(request, replica, chosen, live, now_s)
        replica.requests += 1

    # -- choosing ---------------------------------------------------------------------------

    def choose(
        self, request: Request, live: int, keeper: int | None, cached: int, now_s: float
    ) -> int:
        """The server of a request; the keeper is up and has so many tokens of its prefix."""
        rule = self._leaf.rule
        replica = self._replicas[request.replica]
        if rule == "tokens" or (rule == "dualmap" and request.session_hash < 0):
            return self._power_of_d(request, live)
        if rule == "random":
            return math.floor(request.u_leaf * live)
        if rule == "round_robin":
            return replica.requests % live
        if rule == "prequal":
            return self._prequal(request, replica, live, now_s)
        if rule == "vllm" and request.session_hash >= 0:
            return hashed_server(request.session_hash, live)
        if rule == "dualmap":
            return self._dualmap(request, live, keeper, cached)
        return self._choose_of_all(request, live, keeper, cached, now_s)

    def _choose_of_all(
        self, request: Request, live: int, keeper: int | None, cached: int, now_s: float
    ) -> int:
        rule = self._leaf.rule
        if rule in ("vllm", "preble"):
            return self._least_sent(request, live, keeper, cached, now_s)
        requests = [self._leaves.requests(request.replica, s) for s in range(live)]
        if rule == "ray":
            return choose_server(request.u_leaf, requests)
        if rule == "vllm_load_aware":
            return self._load_aware(request, requests, keeper, cached)
        if keeper is not None and self._keeps(request, requests, keeper, cached):
            return keeper
        fewest = [s for s in range(live) if requests[s] == min(requests)]
        return fewest[0 if rule == "sglang" else math.floor(request.u_leaf * len(fewest))]

    def _tokens(self, request: Request, live: int) -> list[int]:
        return [self._leaves.tokens(request.replica, s) for s in range(live)]

    def _power_of_d(self, request: Request, live: int) -> int:
        tokens = self._tokens(request, live)
        drawn: list[int] = []
        for number in range(min(self._leaf.choices, live)):
            left = [s for s in range(live) if s not in drawn]
            scaled = request.u_leaf * live
            u = (
                request.u_leaf if number == 0
                else scaled - math.floor(scaled) if number == 1
                else uniform(self._seed + DRAWING, request.key, number)
            )  # fmt: skip
            drawn.append(left[math.floor(u * len(left))])
        return min(drawn, key=lambda s: (tokens[s], drawn.index(s)))

    def _load_aware(
        self, request: Request, requests: list[int], keeper: int | None, cached: int
    ) -> int:
        mean = sum(requests) / len(requests)

        def score(s: int) -> float:
            share = cached / request.prompt if s == keeper else 0.0
            return share - self._leaf.load_weight * ((requests[s] - mean) / max(1.0, mean))

        return max(range(len(requests)), key=lambda s: (score(s), -s))

    def _keeps(self, request: Request, requests: list[int], keeper: int, cached: int) -> bool:
        """Whether SGLang, or AIBrix, go where the prefix is."""
        most, least, count = max(requests), min(requests), len(requests)
        if self._leaf.rule == "least_requests":
            return False
        gap = default_of(self._leaf, "imbalance_gap")
        factor = Fraction(default_of(self._leaf, "imbalance_factor"))
        if self._leaf.rule == "sglang":
            uneven = most - least > gap and most > factor * least
            return not uneven and cached / request.prompt > self._leaf.match_share
        mean = Fraction(sum(requests), count)
        variance = Fraction(sum(q * q for q in requests), count) - mean * mean
        uneven = most > factor * (mean + 1) and most - least >= gap
        if uneven and requests[keeper] > least:
            return False
        above = requests[keeper] - mean
        return above <= 0 or above * above <= Fraction(self._leaf.deviations) ** 2 * variance

    def _least_sent(
        self, request: Request, live: int, keeper: int | None, cached: int, now_s: float
    ) -> int:
        """The fewest requests, or Preble's least work, in the window."""
        replica, bucket = self._replicas[request.replica], self._bucket(now_s)
        sums = [replica.sum_of(s, bucket) for s in range(live)]
        if self._leaf.rule == "preble" and keeper is not None:
            if cached > request.prompt - cached:
                return keeper
            sums[keeper] -= cached
        return sums.index(min(sums))

    def _bucket(self, now_s: float) -> int:
        return math.floor(now_s / (default_of(self._leaf, "window_s") / BUCKETS))

    def _dualmap(self, request: Request, live: int, keeper: int | None, cached: int) -> int:
        again = math.floor(uniform(REHASHING, request.session_hash, 0) * 2**32)
        pair = [hashed_server(key, live) for key in (request.session_hash, again)]
        if pair[0] == pair[1]:
            pair[1] = (pair[0] + 1) % live
        work = {}
        for s in pair:
            own = cached if s == keeper else 0
            work[s] = self._leaves.tokens(request.replica, s) + request.prompt - own
        if keeper in pair and work[keeper] * self._prefill_s <= self._leaf.ttft_slo_s:
            return keeper
        return min(pair, key=lambda s: (work[s], pair.index(s)))

    # -- Prequal ----------------------------------------------------------------------------

    def _prequal(self, request: Request, replica: Replica, live: int, now_s: float) -> int:
        leaf = self._leaf
        replica.pool = [
            probe
            for probe in replica.pool
            if probe.sent_s >= now_s - leaf.probe_age_s and probe.server < live
        ]
        pool = replica.pool
        limit = self._limit(replica)
        if len(pool) < 2:
            chosen = math.floor(request.u_leaf * live)
        else:
            cold = [probe for probe in pool if probe.rif <= limit]
            used = (
                min(cold, key=lambda probe: (probe.latency_s, probe.rif)) if cold
                else min(pool, key=lambda probe: (probe.rif, probe.latency_s))
            )  # fmt: skip
            chosen = used.server
            used.rif += 1
            used.uses -= 1
            if used.uses <= 0:
                pool.remove(used)
        for number in self._numbers(replica, leaf.removals_per_request):
            if not pool:
                break
            hot = [probe for probe in pool if probe.rif > limit]
            if number % 2 == 0:
                pool.pop(0)
            elif hot:
                pool.remove(max(hot, key=lambda probe: probe.rif))
            else:
                pool.remove(max(pool, key=lambda probe: probe.latency_s))
        return chosen

    def _limit(self, replica: Replica) -> int:
        rifs = sorted(replica.rifs[-REMEMBERED_RIFS:])
        return rifs[max(math.ceil(self._leaf.rif_quantile * len(rifs)) - 1, 0)] if rifs else 0

    @staticmethod
    def _numbers(replica: Replica, rate: float) -> range:
        """Of what is due with its next request, at so many a request."""
        return range(math.floor(replica.requests * rate), math.floor((replica.requests + 1) * rate))

    def _probe(
        self, request: Request, replica: Replica, chosen: int, live: int, now_s: float
    ) -> None:
        leaf = self._leaf
        count = min(len(self._numbers(replica, leaf.probes_per_request)), live)
        drawn: list[int] = []
        for k in range(count):
            left = [s for s in range(live) if s not in drawn]
            u = uniform(self._seed + PROBING, request.key, k)
            drawn.append(left[math.floor(u * len(left))])
        for k, s in enumerate(drawn):
            rif = self._servers[s].requests + (s == chosen)
            replica.rifs.append(rif)
            held = [probe for probe in replica.pool if probe.server == s]
            if held:
                replica.pool.remove(held[0])
            elif len(replica.pool) == leaf.probe_pool:
                replica.pool.pop(0)
            uses = self._uses(live, request.key, k)
            replica.pool.append(Probe(s, rif, self._latency_s(s, rif), now_s, uses))
        self._books.messages += 2 * count

    def _uses(self, live: int, key: int, k: int) -> float:
        leaf = self._leaf
        rest = (1.0 - leaf.probe_pool / live) * leaf.probes_per_request - leaf.removals_per_request
        if rest <= 0.0:
            return math.inf
        mean = max(1.0, (1.0 + leaf.reuse_delta) / rest)
        whole = math.floor(mean)
        return whole + (uniform(self._seed + REUSING, key, k) < mean - whole)

    def _latency_s(self, server: int, rif: int) -> float:
        """The median of what its requests near this RIF took, the smaller one of two."""
        finished = self._finished[server][-REMEMBERED_LATENCIES:]
        if not finished:
            return 0.0
        reach = max(1, min(abs(then - rif) for then, _ in finished))
        near = sorted(took_s for then, took_s in finished if abs(then - rif) <= reach)
        return near[(len(near) - 1) // 2]
