"""A scenario's mechanisms in the engine's numbers."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from dlb_gym.calibration import latency_parameters
from dlb_gym.disturbances import Disturbances, Window
from dlb_gym.engine import Extras, ExtraSizes, extras, leaf_memory, publish
from dlb_gym.engine.affinity import PrefixCache, cache_slots, limit_cache, map_rows
from dlb_gym.engine.estimator import from_model, model_of
from dlb_gym.engine.layout import NONE, Params
from dlb_gym.latency_model import LatencyModel
from dlb_gym.mechanisms import Affinity, ErrorAversion, Leaf, Telemetry
from dlb_gym.rates import batching_servers, nominal_rates_rps, one_way_s
from dlb_gym.reductions import ordered_sum
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError
from dlb_gym.server_design import ContinuousBatching, Disaggregated
from dlb_gym.streams import Stream, random_stream

FloatArray = NDArray[np.float64]

AFFINITIES = {
    "none": extras.UNUSED,
    "conditional": extras.CONDITIONAL,
    "sticky": extras.STICKY,
    "consistent_hash": extras.HASHED,
}
LEAF_RULES = {
    "tokens": extras.POWER,
    "random": extras.RANDOM,
    "round_robin": extras.ROUND_ROBIN,
    "least_requests": extras.LEAST_REQUESTS,
    "ray": extras.RAY,
    "prequal": extras.PREQUAL,
    "vllm": extras.VLLM,
    "vllm_load_aware": extras.VLLM_LOAD_AWARE,
    "aibrix": extras.AIBRIX,
    "sglang": extras.SGLANG,
    "preble": extras.PREBLE,
    "dualmap": extras.DUALMAP,
}


def uses_mechanisms(scenario: Scenario) -> bool:
    """Whether the engine needs its extras for a scenario."""
    plain = {"burst", "outage"}
    return (
        scenario.telemetry is not None
        or scenario.latency_estimate.kind != "oracle"
        or scenario.error_aversion is not None
        or scenario.demand.has_sessions
        or scenario.leaf != Leaf()
        or scenario.retries is not None
        or isinstance(scenario.server, ContinuousBatching)
        or scenario.server.max_wait_s is not None
        or any(each.kind not in plain for each in scenario.disturbances)
    )


def sizes_for(scenario: Scenario, disturbances: Disturbances, sizes: ExtraSizes) -> ExtraSizes:
    """The sizes, with the axes that only mechanisms have long enough for a scenario."""
    telemetry = scenario.telemetry or Telemetry(leaf_replicas=1, root_replicas=1)
    arcs = Counter((window.root, window.cell) for window in disturbances.windows)
    affinity = _affinity(scenario) or Affinity(cache_sessions=1, map_sessions=1)
    design = scenario.server
    return sizes._replace(
        leaves=max(sizes.leaves, telemetry.leaf_replicas),
        windows=max(sizes.windows, *arcs.values(), 1),
        map_sessions=max(sizes.map_sessions, affinity.map_sessions),
        cache_sessions=max(sizes.cache_sessions, affinity.cache_sessions),
        max_batch=max(
            sizes.max_batch, design.max_batch if isinstance(design, ContinuousBatching) else 1
        ),
        leaf_windows=max(sizes.leaf_windows, window_columns(scenario.leaf)),
        leaf_probes=max(sizes.leaf_probes, held_probes(scenario.leaf)),
    )


def window_columns(leaf: Leaf) -> int:
    """Columns of a leaf replica's sliding window; 1 with rules that have none."""
    return leaf_memory.WINDOW_COLUMNS if leaf.rule in ("vllm", "preble") else 1


def held_probes(leaf: Leaf) -> int:
    """Probes that a leaf replica may hold; 1 with rules that do not probe."""
    return leaf.probe_pool if leaf.rule == "prequal" else 1


def late_by_s(scenario: Scenario, disturbances: Disturbances) -> float:
    """How much older than the journey a report may be that a root has yet to take in.

    At a decision a root looks at what came since the one before; where nothing is lost or late,
    the newest report is enough.
    """
    late_s = sum(w.extra_s for w in _longest_shifts(disturbances))
    if scenario.telemetry is not None:
        late_s += scenario.telemetry.turn_s
    if scenario.telemetry is not None or disturbances.windows or disturbances.leaves_down:
        late_s += scenario.control_interval_s
    return late_s


def _longest_shifts(disturbances: Disturbances) -> list[Window]:
    """The latency shifts of the arc that has the most of them, in seconds; they may overlap."""
    arcs: dict[tuple[int, int], list[Window]] = {}
    for window in disturbances.windows:
        if window.extra_s < math.inf:
            arcs.setdefault((window.root, window.cell), []).append(window)
    return max(arcs.values(), key=lambda each: sum(w.extra_s for w in each), default=[])


def check_protocol(scenario: Scenario, disturbances: Disturbances) -> None:
    """Refuses protocols that the network makes contradictory.

    Raises:
        ScenarioError: A probe would time out before its answer can come, or latency models would
            travel faster than reports.
        NetworkError: Round trips cannot be scaled to the mean asked for.
    """
    shift_s = sum(window.extra_s for window in _longest_shifts(disturbances))
    longest_s = float(np.nanmax(one_way_s(scenario))) + shift_s
    telemetry, estimate = scenario.telemetry, scenario.latency_estimate
    shifted = f" (a latency shift of {shift_s:g} s included)" if shift_s > 0 else ""
    if telemetry is not None and telemetry.probe_timeout_s <= 2.0 * longest_s:
        raise ScenarioError(
            f"telemetry.probe_timeout_s = {telemetry.probe_timeout_s} must exceed the longest "
            f"round trip{shifted} of {2.0 * longest_s:.4g} s, or probes of healthy leaves time "
            "out; lengthen it"
        )
    if estimate.kind != "online":
        return
    # A model made of the fleet's last round must be no earlier at a root than the fleet's reports,
    # and a report under way must find its round among those that are kept.
    kept_s = (longest_s + late_by_s(scenario, disturbances)) / (extras.MODEL_ROUNDS - 1)
    least_s = max(longest_s, kept_s)
    if estimate.refit_interval_s < least_s:
        raise ScenarioError(
            f"latency_estimate.refit_interval_s = {estimate.refit_interval_s} is shorter than "
            f"reports travel{shifted}: at least {least_s:.4g} s are needed here; lengthen it"
        )


def initial_models(scenario: Scenario, seed: int, episode: int) -> FloatArray:
    """Latency models that probes carry from clock 0 on, (C, 4).

    Oracle: each cell's own. Noisy (paper 5.4): (1 + epsilon xi) times it, made admissible again.
    Online: one for all cells, the mean of their logarithms weighted by servers: what an operator
    knows of the fleet before a new endpoint serves.
    """
    estimate = scenario.latency_estimate
    models = np.asarray(latency_parameters(scenario), dtype=np.float64)
    if estimate.kind == "noisy":
        xi = random_stream(seed, episode, Stream.MODEL_NOISE).uniform(-1.0, 1.0, len(models))
        noisy = models * (1.0 + estimate.epsilon * xi)[:, None]
        fixed = LatencyModel(*noisy.T).constrained()
        return np.column_stack([fixed.alpha, fixed.beta, fixed.knee, fixed.smoothing])
    if estimate.kind == "online":
        servers = np.array([[cell.servers] for cell in scenario.cells], dtype=np.float64)
        logs = np.array([from_model(model) for model in models])
        prior = ordered_sum((logs * servers).T) / ordered_sum(servers[:, 0])
        return np.tile(model_of(prior), (len(models), 1))
    return models


def write_row(
    r: int,
    memory: Extras,
    params: Params,
    scenario: Scenario,
    disturbances: Disturbances,
    seed: int,
    episode: int,
) -> None:
    """Writes what row r's mechanisms are; the row must be clear."""
    cells = len(scenario.cells)
    engine_seed = random_stream(seed, episode, Stream.ENGINE_SEED).integers(2**32)
    memory.flag[r, extras.SEED] = int(engine_seed)
    servers = np.array([cell.servers for cell in scenario.cells], dtype=np.float64)
    memory.server_rps[r, :cells] = nominal_rates_rps(scenario) / servers
    _write_servers(r, memory, scenario)
    _write_telemetry(r, memory, scenario)
    _write_aversion(r, memory, scenario.error_aversion)
    affinity = _affinity(scenario)
    if affinity is not None:
        memory.flag[r, extras.AFFINITY] = AFFINITIES[affinity.kind]
        memory.flag[r, extras.CACHE_TOKENS] = affinity.cache_tokens
        memory.flag[r, extras.CACHE_SLOTS] = cache_slots(affinity.cache_sessions)
        memory.flag[r, extras.MAP_ROWS] = map_rows(affinity.map_sessions)
        limit_cache(PrefixCache(*(array[r] for array in memory.cache)), affinity.cache_sessions)
    _write_leaf(r, memory, scenario.leaf)
    if scenario.retries is not None:
        memory.flag[r, extras.ATTEMPTS] = scenario.retries.attempts
        memory.setting[r, extras.BUDGET] = scenario.retries.budget
    _write_faults(r, memory, disturbances)
    _write_models(r, memory, params, scenario, seed, episode)


def _affinity(scenario: Scenario) -> Affinity | None:
    """Servers keep the prefixes of sessions even where routing ignores them."""
    if scenario.affinity is None and scenario.demand.has_sessions:
        return Affinity(kind="none")
    return scenario.affinity


def _write_servers(r: int, memory: Extras, scenario: Scenario) -> None:
    design = scenario.server
    if isinstance(design, Disaggregated):
        for j, cell in enumerate(scenario.cells):
            memory.prefill_s[r, j] = cell.prefill_s_per_token
        if design.max_wait_s is not None:
            memory.setting[r, extras.MAX_WAIT_S] = design.max_wait_s
        return
    memory.flag[r, extras.BATCHING] = 1
    for j, server in enumerate(batching_servers(scenario, design)):
        memory.prefill_s[r, j] = server.prefill_s_per_token
        memory.batches.limits[r, j] = server.limits
        memory.batches.timing[r, j] = server.timing


def _write_telemetry(r: int, memory: Extras, scenario: Scenario) -> None:
    telemetry, flag, setting = scenario.telemetry, memory.flag[r], memory.setting[r]
    if telemetry is None:
        return
    interval_s = scenario.probe_interval_s
    flag[extras.ROOT_REPLICAS] = telemetry.root_replicas
    flag[extras.LEAVES] = telemetry.leaf_replicas
    flag[extras.SYNC_EVERY] = round(telemetry.sync_interval_s / interval_s)
    flag[extras.LOOK_EVERY] = round(telemetry.server_probe_interval_s / interval_s)
    flag[extras.BACKLOGS] = int(telemetry.backlogs)
    if flag[extras.SYNC_EVERY] > 0:
        memory.tally[r, :, extras.NEXT_GATHERING] = 0
    if flag[extras.LOOK_EVERY] > 0:
        memory.tally[r, :, extras.NEXT_LOOK] = 0
    setting[extras.PROBE_LOSS] = telemetry.probe_loss
    setting[extras.PROBE_TIMEOUT_S] = telemetry.probe_timeout_s
    setting[extras.TURN_S] = telemetry.turn_s


def _write_leaf(r: int, memory: Extras, leaf: Leaf) -> None:
    if leaf == Leaf():
        return  # a power of two on tokens has a kernel of its own
    memory.flag[r, extras.LEAF_RULE] = LEAF_RULES[leaf.rule]
    for column, value in (
        (leaf_memory.CHOICES, leaf.choices),
        (leaf_memory.POOL, leaf.probe_pool),
        (leaf_memory.AGE_S, leaf.probe_age_s),
        (leaf_memory.PROBES, leaf.probes_per_request),
        (leaf_memory.REMOVALS, leaf.removals_per_request),
        (leaf_memory.DELTA, leaf.reuse_delta),
        (leaf_memory.QUANTILE, leaf.rif_quantile),
        (leaf_memory.WINDOW_S, leaf.number("window_s")),
        (leaf_memory.LOAD_WEIGHT, leaf.load_weight),
        (leaf_memory.MATCH_SHARE, leaf.match_share),
        (leaf_memory.GAP, leaf.number("imbalance_gap")),
        (leaf_memory.FACTOR, leaf.number("imbalance_factor")),
        (leaf_memory.DEVIATIONS, leaf.deviations),
        (leaf_memory.SLO_S, leaf.ttft_slo_s),
    ):
        memory.rules.setting[r, column] = value


def _write_aversion(r: int, memory: Extras, aversion: ErrorAversion | None) -> None:
    if aversion is None:
        return
    memory.flag[r, extras.AVERTING] = 1
    for column, value in (
        (extras.AVERSION_S, aversion.interval_s),
        (extras.TOLERANCE, aversion.tolerance),
        (extras.GAIN, aversion.gain),
        (extras.HIGHEST, aversion.highest),
        (extras.RISE, aversion.rise),
        (extras.FALL, aversion.fall_per_s),
        (extras.QUIET, aversion.quiet_answers),
        (extras.DOUBT, math.exp(-aversion.interval_s / aversion.recovery_s)),
        (extras.SILENCE_S, aversion.silence_s),
    ):
        memory.setting[r, column] = value


def _write_faults(r: int, memory: Extras, disturbances: Disturbances) -> None:
    for j, changes in enumerate(disturbances.changes):
        for e, change in enumerate(changes):
            leaf = NONE if change.leaf is None else change.leaf
            memory.change[r, j, e] = change.speed, change.error_fraction, change.crash, leaf
    places: dict[tuple[int, int], int] = {}
    for window in disturbances.windows:
        arc = (window.root, window.cell)
        w = places.get(arc, 0)
        places[arc] = w + 1
        memory.window[r, window.root, window.cell, w] = (
            window.start_s,
            window.end_s,
            window.extra_s,
        )
    for down in disturbances.leaves_down:
        memory.leaf_down[r, down.place, : down.replicas] = down.start_s, down.end_s
    for down in disturbances.roots_down:
        memory.root_down[r, down.place] = down.start_s, down.end_s, down.replicas


def _write_models(
    r: int, memory: Extras, params: Params, scenario: Scenario, seed: int, episode: int
) -> None:
    estimate, cells = scenario.latency_estimate, len(scenario.cells)
    models = np.ones((memory.models.shape[1], 4))
    models[:cells] = initial_models(scenario, seed, episode)
    parameters = np.array([from_model(model) for model in models])
    publish(r, memory, params, models, parameters)
    if estimate.kind != "online":
        return
    memory.flag[r, extras.ESTIMATING] = 1
    memory.first_prior[r] = parameters[0]
    setting = memory.setting[r]
    setting[extras.REFIT_S] = estimate.refit_interval_s
    setting[extras.MEMORY_S] = estimate.memory_s
    setting[extras.PRIOR_SD] = estimate.prior_sd
    setting[extras.BACKGROUND] = estimate.background
    setting[extras.DITHER] = estimate.dither
