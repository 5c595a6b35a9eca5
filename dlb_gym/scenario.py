"""Scenarios: everything that describes a system, as frozen data.

A `Scenario` is what the user states, never what can be worked out from it: rates, one-way
latencies and zero-load times are computed where they are used. `scenario_source` loads scenarios
from names, files and dictionaries.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dlb_gym.disturbance_models import Disturbance
from dlb_gym.hardware import PresetName
from dlb_gym.mechanisms import (
    Affinity,
    Autoscaler,
    ErrorAversion,
    LatencyEstimate,
    Leaf,
    Retries,
    Telemetry,
)
from dlb_gym.network import REGIONS
from dlb_gym.scenario_checks import check_mechanisms, nearest_key, require_members
from dlb_gym.server_design import Disaggregated, ServerDesign
from dlb_gym.sessions import Sessions
from dlb_gym.strict import (
    MAX_SECONDS,
    MAX_TOKENS,
    Factor,
    Fraction,
    Name,
    PositiveSeconds,
    Seconds,
    Strict,
)

MAX_CELLS = 1_000
"""Cells, and roots."""
MAX_DISTURBANCES = 1_000
MAX_SERVERS_PER_CELL = 100_000
MAX_STEPS = 100_000_000
"""Control intervals in an episode."""
MAX_REPORTS = 1_000_000_000
"""Reports that a cell emits in an episode: a week's at a probe interval of 0.6 ms."""
MAX_PLACES = 5_000_000
"""Places for requests that a replication keeps ready: cells x servers of the largest x places of a
server, 12 bytes each."""


class TokenDistribution(Strict):
    """Shifted Gamma of token counts: loc + floor(G + 0.5), E[G] = mean - loc.

    The paper (B.1) says "shifted Gamma" and gives no parameters; the defaults are ours.
    """

    loc_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    shape: Annotated[float, Field(ge=1e-3, le=1e6)]
    mean_tokens: Annotated[float, Field(gt=0, le=MAX_TOKENS)]

    @model_validator(mode="after")
    def _mean_above_loc(self) -> Self:
        if self.mean_tokens <= self.loc_tokens:
            raise ValueError(
                f"mean_tokens = {self.mean_tokens} must exceed loc_tokens = {self.loc_tokens}"
            )
        return self


class Tokens(Strict):
    """Prompt and output tokens of a request, drawn independently."""

    prompt: TokenDistribution = TokenDistribution(loc_tokens=20, shape=1.5, mean_tokens=500.0)
    output: TokenDistribution = TokenDistribution(loc_tokens=10, shape=2.0, mean_tokens=200.0)


class Cell(Strict):
    """A pool of equal inference servers behind one leaf router.

    Seconds per token are a disaggregated server's; a continuously batching one may have `hardware`
    of its own.
    """

    name: Name
    region: Name
    servers: Annotated[int, Field(ge=1, le=MAX_SERVERS_PER_CELL)]
    prefill_s_per_token: PositiveSeconds = 2e-4
    decode_s_per_token: PositiveSeconds = 5e-3
    hardware: PresetName | None = None


class Root(Strict):
    """A root router. `demand` is its share of the offered rate, in any unit.

    `reachable` names the cells it may use (residency); None means all of them.
    """

    name: Name
    region: Name
    demand: Annotated[float, Field(ge=0, le=1e12)]
    reachable: tuple[Name, ...] | None = None


class Network(Strict):
    """Round-trip times. Without `rtt_s` they follow the great-circle model of `network.py`.

    Attributes:
        rtt_s: Measured or sampled round trip of every (root, cell), one row a root.
        mean_rtt_s: If given, all round trips are scaled so that those between a root and a cell
            of different names average this.
    """

    rtt_s: tuple[tuple[Seconds, ...], ...] | None = None
    mean_rtt_s: PositiveSeconds | None = None


class DemandProfile(Strict):
    """How the offered rate moves around its mean (1 = the mean rate of the root).

    Daily: 1 + diurnal_amplitude * cos(2 pi (local time - peak) / day). Weekly: days 6 and 7 are
    weekend_factor times the working days. Synchronised: a fraction of the requests waits for the
    next start of a period and arrives within `synchronised_width_s` of it, the others as before
    (paper section 6, "start of each minute"). See `demand_profile`.
    """

    diurnal_amplitude: Annotated[float, Field(ge=0, le=1)] = 0.0
    peak_hour: Annotated[float, Field(ge=0, lt=24)] = 14.0
    start_hour_utc: Annotated[float, Field(ge=0, lt=168)] = 0.0
    day_s: Annotated[float, Field(ge=1, le=MAX_SECONDS)] = 86_400.0
    weekend_factor: Annotated[float, Field(ge=0, le=10)] = 1.0
    synchronised_fraction: Fraction = 0.0
    synchronised_period_s: Annotated[float, Field(ge=0.01, le=MAX_SECONDS)] = 60.0
    synchronised_width_s: PositiveSeconds = 0.1

    @model_validator(mode="after")
    def _pulse_within_period(self) -> Self:
        if self.synchronised_width_s >= self.synchronised_period_s:
            raise ValueError(
                f"synchronised_width_s = {self.synchronised_width_s} must be shorter than "
                f"synchronised_period_s = {self.synchronised_period_s}"
            )
        return self


Column = Annotated[str, Field(max_length=200)]


class Trace(Strict):
    """A recorded request trace (CSV, CSV.gz or JSON lines) that replaces the synthetic arrivals.

    Its timestamps are divided by one factor, so that its offered rate is `utilisation`.
    `scenario_source` fills in what a file or dictionary leaves out beside `path`. With
    `hash_ids_column`, whose entries are ids of prefix blocks of `block_tokens` tokens, requests
    that share a prefix form sessions (see `trace_sessions`).
    """

    path: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    time_column: Column
    prompt_column: Column
    output_column: Column
    hash_ids_column: Column | None = None
    block_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 512
    time_unit_s: PositiveSeconds = 1.0


class Demand(Strict):
    """Offered rate = utilisation x nominal rate of the whole fleet, split by the roots' demand."""

    utilisation: Annotated[Factor, Field(le=10)] = 0.8
    profile: DemandProfile = DemandProfile()
    trace: Trace | None = None
    sessions: Sessions | None = None

    @property
    def has_sessions(self) -> bool:
        """Whether requests belong to sessions."""
        if self.trace is not None:
            return self.trace.hash_ids_column is not None
        return self.sessions is not None

    @model_validator(mode="after")
    def _profile_or_trace(self) -> Self:
        if self.trace is not None and self.profile != DemandProfile():
            raise ValueError(
                "demand.profile shapes synthetic arrivals and demand.trace brings its own; leave "
                "one of them out"
            )
        if self.trace is not None and self.sessions is not None:
            raise ValueError(
                "demand.sessions shapes synthetic arrivals and demand.trace brings its own: leave "
                "one of them out (a trace has the sessions that its hash_ids_column tells)"
            )
        return self


class Scenario(Strict):
    """A geo-distributed serving system, its demand, its disturbances and its protocol.

    Spans (`warmup_s`, `settle_s`, `horizon_s`) are whole numbers of control intervals.
    """

    name: Name
    cells: Annotated[tuple[Cell, ...], Field(min_length=1, max_length=MAX_CELLS)]
    roots: Annotated[tuple[Root, ...], Field(min_length=1, max_length=MAX_CELLS)]
    network: Network = Network()
    tokens: Tokens = Tokens()
    server: ServerDesign = Disaggregated()
    demand: Demand = Demand()
    telemetry: Telemetry | None = None
    latency_estimate: LatencyEstimate = LatencyEstimate(kind="oracle")
    error_aversion: ErrorAversion | None = None
    affinity: Affinity | None = None
    leaf: Leaf = Leaf()
    retries: Retries | None = None
    autoscaler: Autoscaler | None = None
    disturbances: Annotated[tuple[Disturbance, ...], Field(max_length=MAX_DISTURBANCES)] = ()
    dispatch: Literal["sample", "smooth"] = "sample"
    router_delay_s: Seconds = 5e-4
    probe_interval_s: PositiveSeconds = 5e-3
    control_interval_s: PositiveSeconds = 0.1
    warmup_s: Seconds = 20.0
    settle_s: Seconds = 0.0
    horizon_s: PositiveSeconds = 60.0
    error_penalty: Annotated[float, Field(ge=0, le=1e9)] = 10.0

    @model_validator(mode="after")
    def _names(self) -> Self:
        cells = [cell.name for cell in self.cells]
        for key, names in (("cells", cells), ("roots", [root.name for root in self.roots])):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise ValueError(f"{key}: the name {twice[0]!r} stands twice; names must differ")
        for root in self.roots:
            require_members(f"roots.{root.name}.reachable", root.reachable, cells)
            if root.reachable is not None and not root.reachable:
                raise ValueError(
                    f"roots.{root.name}.reachable is empty: a root needs at least one arc; "
                    "name a cell or leave the key out"
                )
        if sum(root.demand for root in self.roots) <= 0:
            raise ValueError("roots: every demand is 0; at least one root must offer requests")
        return self

    @model_validator(mode="after")
    def _mechanisms(self) -> Self:
        check_mechanisms(self)
        return self

    @model_validator(mode="after")
    def _rtt_shape(self) -> Self:
        rtt_s = self.network.rtt_s
        if rtt_s is None:
            return self
        if len(rtt_s) != len(self.roots) or any(len(row) != len(self.cells) for row in rtt_s):
            raise ValueError(
                f"network.rtt_s must have {len(self.roots)} rows (roots) of {len(self.cells)} "
                f"values (cells); got rows of {sorted({len(row) for row in rtt_s})} x {len(rtt_s)}"
            )
        return self

    @model_validator(mode="after")
    def _regions(self) -> Self:
        """Regions need coordinates or a time zone only where nothing measured replaces them."""
        profile = self.demand.profile
        local_time = profile.diurnal_amplitude > 0 or profile.weekend_factor != 1
        located: list[Cell | Root] = []
        if self.network.rtt_s is None:
            located = [*self.cells, *self.roots]
        elif local_time:
            located = list(self.roots)
        for place in located:
            if place.region not in REGIONS:
                raise ValueError(
                    f"region {place.region!r} of {place.name!r} is unknown"
                    f"{nearest_key(place.region, REGIONS)}; use a region of "
                    "dlb_gym.network.REGIONS or give measured round trips (network.rtt_s, or "
                    "rtt_csv when loading)"
                )
        return self

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        """A slip in a unit must not become an endless episode or exhaust the memory."""
        episode_s = self.warmup_s + self.settle_s + self.horizon_s
        for key, most, what in (
            ("control_interval_s", MAX_STEPS, "control intervals"),
            ("probe_interval_s", MAX_REPORTS, "reports of a cell"),
        ):
            count = episode_s / getattr(self, key)
            if count > most:
                raise ValueError(
                    f"{key} = {getattr(self, key)} makes {count:.3g} {what} in an episode of "
                    f"{episode_s:.6g} s (warm-up, settling and horizon); at most {most:,} are "
                    "possible: lengthen the interval or shorten the episode"
                )
        servers, whose = max(cell.servers for cell in self.cells), "the largest cell's"
        if self.autoscaler is not None:
            fleet = sum(cell.servers for cell in self.cells)
            servers = math.floor(fleet * (1.0 + self.autoscaler.extra_servers))
            whose = "the autoscaler may give all to one cell"
        design = self.server
        width = (
            ("server.slots_per_engine", design.decode_slots, "slots or engines")
            if isinstance(design, Disaggregated)
            else ("server.max_batch", design.max_batch, "max_batch")
        )
        for key, places, part in (
            ("server.queue_limit", design.queue_limit, "queue_limit"),
            width,
        ):
            total = len(self.cells) * servers * places
            if total > MAX_PLACES:
                raise ValueError(
                    f"{key}: {len(self.cells)} cells x {servers:,} servers ({whose}) x "
                    f"{places:,} places a server = {total:,} places in a replication; at most "
                    f"{MAX_PLACES:,} are kept in memory: lower {part} or servers"
                )
        return self

    @model_validator(mode="after")
    def _spans(self) -> Self:
        for key in ("warmup_s", "settle_s", "horizon_s"):
            span_s = getattr(self, key)
            intervals = span_s / self.control_interval_s
            if not math.isclose(intervals, round(intervals), rel_tol=1e-9, abs_tol=1e-9):
                raise ValueError(
                    f"{key} = {span_s} is no whole number of control intervals of "
                    f"{self.control_interval_s} s; choose a multiple"
                )
        if self.probe_interval_s > self.horizon_s:
            raise ValueError(
                f"probe_interval_s = {self.probe_interval_s} exceeds "
                f"horizon_s = {self.horizon_s}: no probe would be sent; shorten it"
            )
        return self

    def intervals(self, span_s: float) -> int:
        """Number of control intervals in a span."""
        return round(span_s / self.control_interval_s)

    def digest(self) -> str:
        """SHA-256 (16 hex digits) of the scenario's content; a trace counts by its own hash."""
        content = self.model_dump(mode="json", exclude={"demand": {"trace": {"path"}}})
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
