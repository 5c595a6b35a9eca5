"""What an episode takes, estimated before memory or time is spent on it.

`require_room` refuses scenarios whose memory or number of events nobody can have meant, and names
what takes most and what to change. The bounds leave room for 1,000 cells at a hundred requests a
second, and for 200 cells, 10,000 servers and a million requests a second over a day.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlb_gym.autoscaler import Scaler
from dlb_gym.disturbances import Disturbances
from dlb_gym.engine import ExtraSizes, extras, layout, leaf_memory
from dlb_gym.engine.affinity import cache_slots, map_rows
from dlb_gym.mechanism_rows import late_by_s, sizes_for, uses_mechanisms
from dlb_gym.observation import FIELDS
from dlb_gym.rates import demand_shares, offered_rate_rps, one_way_s
from dlb_gym.scenario import DemandProfile, Scenario
from dlb_gym.scenario_source import ScenarioError
from dlb_gym.server_design import Disaggregated
from dlb_gym.session_requests import LONGEST_MEANS
from dlb_gym.sessions import turn_moments
from dlb_gym.trace import load_trace
from dlb_gym.workload import CHUNK_S, COLUMNS, SESSION_COLUMNS

MAX_BYTES = 16 * 2**30
"""Memory of a batch, all rows together."""
MAX_REQUESTS = 1e12
"""Of an episode: more than ten days of a million a second."""
MAX_CHUNKS = 1e9
"""Chunks of ten seconds in an episode, times its roots: five years of 60 roots."""
MAX_EARLIER_CHUNKS = 1e6
"""Chunks before clock 0 in which sessions may start that go on after it, times roots."""
MAX_SESSIONS_PER_CHUNK = 2**24
"""Of a root; every one has a number of its own."""

_WORD = 8


class Axes(NamedTuple):
    """Lengths of a row's axes, and how many requests it may hold at once.

    Attributes:
        roots: Root routers.
        cells: Cells.
        servers: Most servers of a cell.
        slots: Decode slots of a server.
        queue: Places of a server.
        changes: Changes of a cell's schedule.
        probes: Reports of a cell that are kept.
        leaves: Leaf replicas; 0 where the engine needs no extras at all.
        windows: Cuts and shifts of one arc.
        map_sessions: Sessions that a root remembers.
        cache_sessions: Sessions that a cell remembers.
        max_batch: Requests of a batch.
        leaf_windows: Columns of a leaf replica's sliding window.
        leaf_probes: Probes that it holds.
        columns: Of a request that is drawn.
        ahead: Requests of the busiest root that are drawn and not yet dispatched.
        chunk: Requests of all roots that are drawn together.
        kept: Requests of sessions that started and go on.
        under_way: Requests dispatched and not yet at a server, or answered and not yet back.
    """

    roots: int
    cells: int
    servers: int = 1
    slots: int = 1
    queue: int = 1
    changes: int = 2
    probes: int = 2
    leaves: int = 0
    windows: int = 1
    map_sessions: int = 0
    cache_sessions: int = 0
    max_batch: int = 1
    leaf_windows: int = 1
    leaf_probes: int = 1
    columns: int = len(COLUMNS)
    ahead: float = 0.0
    chunk: float = 0.0
    kept: float = 0.0
    under_way: float = 0.0


def axes_of(scenario: Scenario, disturbances: Disturbances) -> Axes:
    """The axes of a row that plays a scenario.

    Raises:
        TraceError: The scenario's trace cannot be used.
    """
    design = scenario.server
    scaler = None if scenario.autoscaler is None else Scaler(scenario)
    extra = sizes_for(scenario, disturbances, ExtraSizes(*[1] * len(ExtraSizes._fields)))
    tau_s = float(np.nanmax(one_way_s(scenario)))
    late_s = tau_s + late_by_s(scenario, disturbances)
    ahead_s = max(0.5 * CHUNK_S, scenario.control_interval_s) + CHUNK_S
    return Axes(
        roots=len(scenario.roots),
        cells=len(scenario.cells),
        servers=max(cell.servers for cell in scenario.cells) if scaler is None
        else scaler.most_servers,
        slots=design.decode_slots if isinstance(design, Disaggregated) else 1,
        queue=design.queue_limit,
        changes=max(
            1 + max(len(each) for each in disturbances.changes),
            2 if scaler is None else scaler.most_changes,
        ),
        probes=1 << (math.ceil(late_s / scenario.probe_interval_s) + 2).bit_length(),
        leaves=extra.leaves if uses_mechanisms(scenario) else 0,
        windows=extra.windows,
        map_sessions=extra.map_sessions,
        cache_sessions=extra.cache_sessions,
        max_batch=extra.max_batch,
        leaf_windows=extra.leaf_windows,
        leaf_probes=extra.leaf_probes,
        columns=len(SESSION_COLUMNS if scenario.demand.has_sessions else COLUMNS),
        ahead=max(_requests(scenario, disturbances, ahead_s)),
        chunk=sum(_requests(scenario, disturbances, CHUNK_S)),
        kept=offered_rate_rps(scenario) * (_longest_session_s(scenario) + CHUNK_S)
        if scenario.demand.sessions is not None
        else 0.0,
        under_way=sum(
            _requests(scenario, disturbances, 2.0 * late_s + scenario.control_interval_s)
        ),
    )  # fmt: skip


def bytes_of(axes: Axes) -> dict[str, float]:
    """Bytes of a row, by what takes them."""
    arcs = axes.roots * axes.cells
    servers = axes.cells * axes.servers
    extra = min(axes.leaves, 1)
    places = servers * axes.queue
    held = 2.0 * (places + axes.under_way)  # pools grow by doubling
    width = layout.REQUEST_COLUMNS + 1 + extra * extras.EXTRA_REQUEST_COLUMNS
    report = 1 + layout.PROBE_RECEIVED + axes.roots + extra * extras.REPORT_COLUMNS
    window = extra * axes.windows * extras.WINDOW_COLUMNS
    # An observation, its constants, and the space: two bounds of four bytes, two flags of one.
    arc = 37 + 2.25 * len(FIELDS) + extra * (16 + extras.EXTRA_ARC_COLUMNS) + window
    server = layout.SERVER_COLUMNS + 1 + axes.slots + 1.5 * axes.queue
    server += extra * (extras.SEEN_COLUMNS + 14 + axes.max_batch)
    server += axes.leaves * (extras.PLACED_COLUMNS + axes.leaf_windows)
    replica = leaf_memory.PROBE_COLUMNS * axes.leaf_probes + 2 * leaf_memory.RIFS
    if axes.leaf_probes > 1:
        server += 2 * leaf_memory.FINISHED
    change = 2 + extra * extras.CHANGE_COLUMNS
    words = {
        "arcs": arcs * arc,
        "reports": axes.cells * axes.probes * report,
        "servers": servers * server + axes.cells * axes.leaves * replica,
        "changes": axes.cells * axes.changes * change,
        "sessions": axes.cells * (cache_slots(axes.cache_sessions) + 6 * axes.cache_sessions)
        + axes.roots * 2 * map_rows(max(axes.map_sessions, 1))
        if axes.cache_sessions
        else 0,
        "drawn": 2.0 * axes.roots * axes.ahead * axes.columns,
        "kept": axes.kept * len(SESSION_COLUMNS),
        "held": held * width + axes.cells * 3.0 * axes.under_way,
    }
    return {what: _WORD * count for what, count in words.items()}


_REMEDIES = {
    "arcs": "arcs between {a.roots:,} roots and {a.cells:,} cells: use fewer roots and cells",
    "reports": "{a.probes:,} reports of each cell under way, with counts of {a.roots:,} roots: "
    "lengthen probe_interval_s, or shorten latencies, disturbances' extra_s, telemetry.turn_s or "
    "control_interval_s",
    "servers": "{a.cells:,} cells x {a.servers:,} servers with {a.queue:,} places: lower servers, "
    "server.queue_limit or telemetry.leaf_replicas",
    "changes": "{a.changes:,} changes in each cell's schedule: lengthen autoscaler.interval_s, "
    "shorten horizon_s or use fewer disturbances",
    "sessions": "sessions that are remembered: lower affinity.cache_sessions and map_sessions",
    "drawn": "{a.ahead:.3g} requests of the busiest root drawn ahead, with room for as many at "
    "each of {a.roots:,} roots: lower demand.utilisation or servers, shorten "
    "control_interval_s or demand.profile's synchronised_period_s, or spread the roots' demand",
    "kept": "{a.kept:.3g} requests of sessions that go on: shorten demand.sessions.gap_s or "
    "mean_turns, or lower demand.utilisation",
    "held": "requests in {a.cells:,} cells and {a.under_way:.3g} under way: lower "
    "server.queue_limit, servers or demand.utilisation, or shorten latencies, control_interval_s "
    "or demand.profile's synchronised_period_s",
}


def require_room(what: str, axes: Axes, rows: int = 1) -> None:
    """Refuses a batch that takes too much memory.

    Args:
        what: Is to be played, for the message.
        axes: The longest of all scenarios.
        rows: Rows of the batch.

    Raises:
        ScenarioError: It would take more than `MAX_BYTES`.
    """
    parts = bytes_of(axes)
    parts["drawn"] += 2.0 * _WORD * axes.chunk * axes.columns / rows  # one row draws at a time
    total = rows * sum(parts.values())
    if total > MAX_BYTES:
        most = max(parts, key=lambda part: parts[part])
        raise ScenarioError(
            f"{what} would take about {_gib(total)} of memory in {rows:,} "
            f"row{'s' if rows > 1 else ''}; at most {_gib(MAX_BYTES)} are allowed. "
            f"{_gib(rows * parts[most])} are for {_REMEDIES[most].format(a=axes)}"
            f"{', or make fewer rows' if rows > 1 else ''}"
        )


def require_length(scenario: Scenario) -> None:
    """Refuses an episode of more events than anybody waits for, or than can be numbered.

    Raises:
        ScenarioError: It has too many.
        TraceError: The scenario's trace cannot be used.
    """
    episode_s = scenario.warmup_s + scenario.settle_s + scenario.horizon_s
    roots, rate_rps = len(scenario.roots), offered_rate_rps(scenario)
    sessions = scenario.demand.sessions
    counts = [
        (rate_rps * episode_s, MAX_REQUESTS, f"requests at {rate_rps:.3g} a second",
         "shorten horizon_s, or lower demand.utilisation or servers"),
        (episode_s / CHUNK_S * roots, MAX_CHUNKS, f"spans of {CHUNK_S:g} s x {roots:,} roots",
         "shorten horizon_s, or use fewer roots"),
    ]  # fmt: skip
    if sessions is not None:
        starts = rate_rps * float(demand_shares(scenario).max()) / turn_moments(sessions).turns
        counts += [
            (_longest_session_s(scenario) / CHUNK_S * roots, MAX_EARLIER_CHUNKS,
             f"spans of {CHUNK_S:g} s x {roots:,} roots before its start, from which sessions last",
             "shorten demand.sessions.gap_s or mean_turns"),
            (starts * _peak_s(scenario.demand.profile, CHUNK_S), MAX_SESSIONS_PER_CHUNK,
             f"sessions that start at one root within {CHUNK_S:g} s",
             "lower demand.utilisation, or spread the roots' demand"),
        ]  # fmt: skip
    for count, most, what, remedy in counts:
        if not count <= most:
            raise ScenarioError(
                f"scenario {scenario.name!r} makes {count:.3g} {what}, in an episode of "
                f"{episode_s:.6g} s (warm-up, settling and horizon); at most {most:.3g} are "
                f"possible: {remedy}"
            )


def longest(every: list[Axes]) -> Axes:
    """The longest of each axis: a batch is padded to it."""
    return Axes(*(max(lengths) for lengths in zip(*every, strict=True)))


def _requests(scenario: Scenario, disturbances: Disturbances, span_s: float) -> list[float]:
    """The most requests of each root within any such span."""
    rate_rps = offered_rate_rps(scenario)
    if scenario.demand.trace is None:
        most = rate_rps * _peak_s(scenario.demand.profile, span_s)
    else:
        most = _most_replayed(load_trace(scenario.demand.trace).time_s, rate_rps, span_s)
    requests: list[float] = (most * demand_shares(scenario)).tolist()
    for burst in disturbances.bursts:
        requests[burst.root] += burst.extra_rps * min(span_s, burst.end_s - burst.start_s)
    return [count + 6.0 * math.sqrt(count) for count in requests]


def _most_replayed(time_s: NDArray[np.float64], rate_rps: float, span_s: float) -> float:
    """The most requests of a replay within any such span; see `trace_replay` for its circle."""
    count = time_s.size
    laps, rest = divmod(span_s * rate_rps / count, 1.0)
    place = time_s * ((count - 1) / count / time_s[-1])  # of a lap
    ends = np.searchsorted(np.concatenate((place, place + 1.0)), place + rest, side="right")
    return float(laps * count + (ends - np.arange(count)).max())


def _peak_s(profile: DemandProfile, span_s: float) -> float:
    """The most that the relative rate adds up to within a span, seconds."""
    fraction, period_s = profile.synchronised_fraction, profile.synchronised_period_s
    pulses_s = 0.0
    if fraction > 0:
        share = min(1.0, span_s / profile.synchronised_width_s)
        pulses_s = fraction * period_s * share * (math.floor(span_s / period_s) + 1)
    weekend = profile.weekend_factor
    busiest_day = max(1.0, weekend) * 7.0 / (5.0 + 2.0 * weekend)
    even_s = (1.0 - fraction) * span_s
    return (1.0 + profile.diurnal_amplitude) * busiest_day * (even_s + pulses_s)


def _longest_session_s(scenario: Scenario) -> float:
    sessions = scenario.demand.sessions
    return 0.0 if sessions is None else LONGEST_MEANS * sessions.mean_turns * sessions.gap_s


def _gib(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB"
