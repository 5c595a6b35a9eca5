"""What the paper's mechanisms are in a scenario, as frozen data: each is off where it is left out.

Where the paper gives a number or a rule, it is the default; where it leaves one open, the default
is ours, and the docstring says so. How they work stands beside the kernels in `engine/`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dlb_gym.strict import MAX_COUNT, Factor, Fraction, PositiveSeconds, Seconds, Strict

MAX_REPLICAS = 200
"""Router replicas of a cell; the paper's cells run 5 to 200 (section 5.1)."""

MAX_CHOICES = 64
"""Servers that a leaf draws for one request; the engine keeps room for as many."""

Replicas = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]


class Telemetry(Strict):
    """How state travels from servers to leaves to roots (paper 3.1, 3.6).

    Root replicas of a cell take turns at probing; what they learned is shared when a turn ends, so
    a turn adds to a probe's age. A report comes from the leaf replica whose turn it is: its own RIF
    now and its peers' as of the last synchronisation. Leaves see servers as of their last probes,
    plus what they placed since.

    The paper gives the number of replicas (5 to 200), no intervals, and no loss: those are ours.

    Attributes:
        probe_loss: Share of reports that never reach their root.
        probe_timeout_s: Time after which an unanswered probe counts against its leaf replica.
        root_replicas: Root routers of a cell.
        turn_s: Length of a turn; 0: every report is shared at once.
        leaf_replicas: Leaf routers of a cell.
        sync_interval_s: Time between two gatherings of peers' RIF, whole probe intervals; 0: the
            RIF is the cell's own.
        server_probe_interval_s: Time between two looks at the servers, whole probe intervals; 0:
            leaves see the servers as they are.
        backlogs: Reports carry the tokens that wait for prefill and decode.
    """

    probe_loss: Annotated[float, Field(ge=0, lt=1)] = 0.0
    probe_timeout_s: PositiveSeconds = 0.5
    root_replicas: Replicas = 5
    turn_s: Seconds = 0.025
    leaf_replicas: Replicas = 5
    sync_interval_s: Seconds = 0.01
    server_probe_interval_s: Seconds = 0.01
    backlogs: bool = False


class LatencyEstimate(Strict):
    """Where the latency model in probes comes from (paper 3.3, 5.4, 6).

    The paper says what is estimated and that closed-loop safeguards exist; the numbers are ours.

    Attributes:
        kind: "oracle": calibrated beforehand. "online": fitted by the leaves while they serve.
            "noisy": oracle x (1 + epsilon xi), one xi from U[-1, 1] for a cell (paper 5.4).
        epsilon: Of "noisy".
        refit_interval_s: Time between two fits.
        memory_s: Time in which a sample's weight falls to 1 / e.
        prior_sd: Standard deviation of the prior on the logarithmic parameters.
        background: Share of the requests sent to a cell drawn at random, against starvation.
        dither: Largest relative noise on published latencies, drawn at each fit.
    """

    kind: Literal["oracle", "online", "noisy"] = "online"
    epsilon: Annotated[float, Field(ge=0, lt=1)] = 0.1
    refit_interval_s: PositiveSeconds = 10.0
    memory_s: PositiveSeconds = 60.0
    prior_sd: Annotated[float, Field(ge=1e-3, le=100)] = 0.5
    background: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    dither: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _used(self) -> Self:
        """A key that its kind ignores is a slip: the scenario's own kind is the oracle's."""
        owners = {"epsilon": "noisy"} | dict.fromkeys(
            ("refit_interval_s", "memory_s", "prior_sd", "background", "dither"), "online"
        )
        for key, kind in owners.items():
            value = getattr(self, key)
            if self.kind != kind and value != type(self).model_fields[key].default:
                raise ValueError(
                    f"{key} = {value} has no effect with kind = {self.kind!r}: set kind = "
                    f"{kind!r}, or leave {key} out"
                )
        return self


class ErrorAversion(Strict):
    """Roots avoid cells that err more than the best one (paper 3.4; numbers of theory.md 6).

    Attributes:
        interval_s: Time between two updates of the aversion rates.
        tolerance: Excess of a cell's error rate over the best one's that is forgiven.
        gain: Aversion for an excess of 1 beyond that.
        highest: Largest aversion rate; below 1, so that a trickle shows a recovery.
        rise: Part of the way up that an update takes.
        fall_per_s: How fast aversion falls.
        quiet_answers: With fewer answers in the last two intervals an error rate is doubted.
        recovery_s: Time in which a doubted error rate falls to 1 / e.
        silence_s: A cell from which no report came for longer, its journey aside, is avoided.
    """

    interval_s: PositiveSeconds = 1.0
    tolerance: Fraction = 0.01
    gain: Factor = 4.0
    highest: Annotated[Factor, Field(lt=1)] = 0.95
    rise: Annotated[Factor, Field(le=1)] = 0.5
    fall_per_s: Factor = 0.05
    quiet_answers: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 5
    recovery_s: PositiveSeconds = 10.0
    silence_s: PositiveSeconds = 2.0


class Affinity(Strict):
    """Requests of a session go back to where their prefix is cached (paper 3.5).

    Attributes:
        kind: "conditional": while latency there minus the prefill saved is lower than elsewhere
            (the paper's). "sticky": always. "consistent_hash": cell and server by hash alone.
            "none": servers keep caches, and routing ignores them.
        cache_tokens: Prefix cache of a server (ours; the paper gives none).
        cache_sessions: Sessions that the servers of a cell remember together.
        map_sessions: Sessions that a root remembers.
    """

    kind: Literal["conditional", "sticky", "consistent_hash", "none"] = "conditional"
    cache_tokens: Annotated[int, Field(ge=1, le=10**15)] = 100_000
    cache_sessions: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    map_sessions: Annotated[int, Field(ge=1, le=1_000_000)] = 1024


class Leaf(Strict):
    """How a leaf router chooses the server of a request.

    "tokens" with two choices is DLB's own (paper 3.1). What each rule is, its source and what it
    knows stand in docs/leaf_rules.md and `engine.leaf_rules`. Keys that a rule does not look at
    must be left out; the defaults are its source's.

    Attributes:
        rule: Its name.
        choices: Servers among which "tokens" takes the one with the fewest unfinished tokens.
        probe_pool: Probes that "prequal" holds.
        probe_age_s: Age at which "prequal" drops them.
        probes_per_request: That "prequal" sends; need not be whole.
        removals_per_request: Probes that "prequal" drops on purpose; likewise.
        reuse_delta: The more, the more often "prequal" uses a probe.
        rif_quantile: Of "prequal": servers with more requests than this quantile are hot.
        window_s: Time over which "vllm" counts requests (default 60) and "preble" work (180).
        load_weight: Of "vllm_load_aware": hits that a server with twice the mean load outweighs.
        match_share: Part of a prompt that must be cached for "sglang" to go there.
        imbalance_gap: Requests by which servers must differ for "sglang" (64) and "aibrix" (8) to
            forget about caches.
        imbalance_factor: Ratio by which they must differ as well, of "sglang" (1.5: largest to
            least) and "aibrix" (2: largest to mean + 1).
        deviations: Standard deviations above the mean that "aibrix" lets a keeper's requests be.
        ttft_slo_s: Time to the first token within which "dualmap" goes to the keeper.
    """

    rule: Literal[
        "tokens",
        "random",
        "round_robin",
        "least_requests",
        "ray",
        "prequal",
        "vllm",
        "vllm_load_aware",
        "aibrix",
        "sglang",
        "preble",
        "dualmap",
    ] = "tokens"
    choices: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 2
    probe_pool: Annotated[int, Field(ge=2, le=MAX_CHOICES)] = 16
    probe_age_s: PositiveSeconds = 1.0
    probes_per_request: Annotated[Factor, Field(le=MAX_CHOICES)] = 3.0
    removals_per_request: Annotated[float, Field(ge=0, le=MAX_CHOICES)] = 1.0
    reuse_delta: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    rif_quantile: Fraction = 2.0**-0.25
    window_s: PositiveSeconds | None = None
    load_weight: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    match_share: Fraction = 0.3
    imbalance_gap: Annotated[int, Field(ge=0, le=MAX_COUNT)] | None = None
    imbalance_factor: Annotated[float, Field(ge=0, le=1e6)] | None = None
    deviations: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    ttft_slo_s: PositiveSeconds = 5.0

    @property
    def looks_at_sessions(self) -> bool:
        """Whether the rule goes by where prefixes are cached, so that it needs sessions."""
        return self.rule in ("vllm_load_aware", "aibrix", "sglang", "preble", "dualmap")

    def number(self, key: str) -> Any:
        """The value of a key whose default depends on the rule; 0 where the rule has none."""
        value = getattr(self, key)
        return _LEAF_DEFAULTS[key].get(self.rule, 0) if value is None else value

    @model_validator(mode="after")
    def _used(self) -> Self:
        """A key that its rule ignores is a slip."""
        for key, rules in _LEAF_KEYS.items():
            value = getattr(self, key)
            if self.rule not in rules and value != type(self).model_fields[key].default:
                owners = " or ".join(repr(rule) for rule in rules)
                raise ValueError(
                    f"{key} = {value} has no effect with rule = {self.rule!r}: set rule = "
                    f"{owners}, or leave {key} out"
                )
        return self


_LEAF_DEFAULTS: dict[str, dict[str, float]] = {
    "window_s": {"vllm": 60.0, "preble": 180.0},
    "imbalance_gap": {"sglang": 64, "aibrix": 8},
    "imbalance_factor": {"sglang": 1.5, "aibrix": 2.0},
}
"""Defaults that differ by rule."""

_LEAF_KEYS: dict[str, tuple[str, ...]] = {
    "choices": ("tokens",),
    **dict.fromkeys(
        (
            "probe_pool",
            "probe_age_s",
            "probes_per_request",
            "removals_per_request",
            "reuse_delta",
            "rif_quantile",
        ),
        ("prequal",),
    ),
    "load_weight": ("vllm_load_aware",),
    "match_share": ("sglang",),
    "deviations": ("aibrix",),
    "ttft_slo_s": ("dualmap",),
    **{key: tuple(own) for key, own in _LEAF_DEFAULTS.items()},
}


class Retries(Strict):
    """Clients send failed requests again, at the next decision, within a budget.

    Ours: the paper does not describe its clients.

    Attributes:
        attempts: Most retries of a request.
        budget: Retries that a root's clients may add, as a share of their requests.
    """

    attempts: Annotated[int, Field(ge=1, le=100)] = 1
    budget: Fraction = 0.1


class Autoscaler(Strict):
    """Changes the number of servers, slowly (paper 6).

    Ours, from the paper's words: it acts on infrastructure metrics, takes minutes, and capacity is
    limited. See `autoscaler` for the rules.

    Attributes:
        kind: What drives it: "utilisation" (the paper's) or "marginal_latency".
        target_utilisation: That "utilisation" aims at.
        target_marginal: Marginal latency over the zero-load time that "marginal_latency" aims at.
        interval_s: Time between two decisions, whole control intervals.
        delay_s: Time until an ordered server serves.
        extra_servers: Most servers beyond the scenario's, in the fleet, as a share of them.
        least_share: Fewest servers of a cell, as a share of the scenario's.
    """

    kind: Literal["utilisation", "marginal_latency"] = "utilisation"
    target_utilisation: Annotated[Factor, Field(le=1)] = 0.7
    target_marginal: Annotated[float, Field(gt=1, le=1e9)] = 1.5
    interval_s: PositiveSeconds = 30.0
    delay_s: Seconds = 120.0
    extra_servers: Annotated[float, Field(ge=0, le=10)] = 0.25
    least_share: Fraction = 0.5

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.extra_servers == 0 and self.least_share == 1:
            raise ValueError(
                "extra_servers = 0 and least_share = 1 leave an autoscaler nothing to change: "
                "raise the one, lower the other, or leave the autoscaler out"
            )
        return self
