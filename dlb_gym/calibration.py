"""Latency curves measured offline: the `oracle` latency model.

A server design under a token mix has a curve for every share w of prefill in its zero-load time;
in units of the zero-load time S = E[P] t_p + E[D] t_d nothing else about a cell matters but its
number of servers, whose influence at equal requests per server is small (power of two choices).
One cell of `SERVERS` servers is run at loads from light to overloaded for shares on a grid; at each
load the mean RIF per server n and the latency n / throughput (Little's law, as the paper's 3.3
reads its model) give a point, and the constrained softplus of theory.md section 5 is fitted to
them in relative error. A cell's parameters are interpolated between the two shares around its own;
shares 0 and 1, where a stage has no tokens at all, are measured as they are.

Continuously batching servers have no such share: a curve belongs to a server in numbers (design
and hardware), and cells of equal servers share it. Below a full batch it already rises, since
iterations grow with the batch, and past it more steeply; the softplus lies between the two.

The same runs give each load's 95th percentile of the latencies, over the requests that arrive after
the first window, and the same softplus is fitted to it: the `tail` parameters, for costs that look
at slow requests.

Fits are kept on disk beside the compiled kernels, where a change of the engine leaves them behind
with the kernels; their names carry a hash of all else that they follow from. Python floats survive
JSON bit for bit, so a fit that was kept is the fit that would be made.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dlb_gym import engine
from dlb_gym.aside import write_aside
from dlb_gym.batching_rates import batching_rate_rps, batching_zero_load_s
from dlb_gym.engine import layout
from dlb_gym.latency_model import RHO_MAX, LatencyModel
from dlb_gym.measurements import quantile_s
from dlb_gym.rates import batching_servers, mean_tokens, token_moments, zero_load_times_s
from dlb_gym.scenario import Scenario, Tokens, Trace
from dlb_gym.scenario_source import ScenarioError
from dlb_gym.server_design import BatchingServer, ContinuousBatching, Disaggregated
from dlb_gym.session_requests import request_tokens
from dlb_gym.sessions import Sessions
from dlb_gym.tokens import TokenColumns

FloatArray = NDArray[np.float64]
Servers = Disaggregated | BatchingServer

SERVERS = 10
FARTHEST = 300.0
"""Bound on the logarithms that are fitted: a curve without a flat part sends the knee's to minus
infinity and the smoothing's to plus infinity, together, until both overflow."""
LOADS = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.1, 1.3)
WINDOW = 20.0  # zero-load times; the first window warms up, the others are measured
WINDOWS = 5
PREFILL_LOGITS = np.linspace(-5.0, 5.0, 17)  # grid of log(w / (1 - w))
SEED = 20_260_101
TAIL = 0.95
PARAMETERS = 4


class Curve(NamedTuple):
    """A cell of zero-load time 1 at each of `LOADS`.

    Attributes:
        n: Mean RIF per server.
        latency: Mean serving latency.
        tail: 95th percentile of it.
    """

    n: FloatArray
    latency: FloatArray
    tail: FloatArray


class Mix(NamedTuple):
    """What decides the tokens of a scenario's requests."""

    tokens: Tokens
    sessions: Sessions | None
    trace: Trace | None

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """Of the sessions, only the turns: when they come and what is cached makes no tokens."""
        demand = scenario.demand
        sessions = demand.sessions
        if sessions is not None:
            sessions = Sessions(
                mean_turns=sessions.mean_turns,
                max_turns=sessions.max_turns,
                hot_fraction=sessions.hot_fraction,
                hot_factor=sessions.hot_factor,
            )
        return cls(scenario.tokens, sessions, demand.trace)


def latency_parameters(scenario: Scenario) -> FloatArray:
    """The cells' latency model, per server: alpha (s), beta (s), knee and smoothing (requests).

    Returns:
        Shape (cells, 4).

    Raises:
        ScenarioError: The tokens are so rare that a sample of requests has none.
        TraceError: The trace cannot be used.
    """
    return _parameters(scenario)[:, :PARAMETERS]


def tail_parameters(scenario: Scenario) -> FloatArray:
    """`latency_parameters` of the 95th percentile of the serving latency, of the same shape.

    Raises:
        ScenarioError: As there.
        TraceError: As there.
    """
    return _parameters(scenario)[:, PARAMETERS:]


def _parameters(scenario: Scenario) -> FloatArray:
    """Those of the mean, then those of the tail, (cells, 8)."""
    zero_load_s = zero_load_times_s(scenario)
    design = scenario.server
    if isinstance(design, ContinuousBatching):
        return _batching_parameters(scenario, design, zero_load_s)
    prompt_tokens, _ = mean_tokens(scenario)
    prefill_s = prompt_tokens * np.array([cell.prefill_s_per_token for cell in scenario.cells])
    return np.array(
        [
            _in_seconds(_interpolated(scenario, design, float(share)), unit_s)
            for share, unit_s in zip(prefill_s / zero_load_s, zero_load_s, strict=True)
        ]
    )


def _in_seconds(parameters: Sequence[float] | FloatArray, unit_s: float) -> FloatArray:
    """Alphas and betas are times, knees and smoothings counts."""
    return np.asarray(np.array(parameters) * np.tile([unit_s, unit_s, 1.0, 1.0], 2))


def _batching_parameters(
    scenario: Scenario, design: ContinuousBatching, zero_load_s: FloatArray
) -> FloatArray:
    mix = Mix.of(scenario)
    return np.array(
        [
            _in_seconds(_fitted(None, mix, server), unit_s)
            for server, unit_s in zip(batching_servers(scenario, design), zero_load_s, strict=True)
        ]
    )


def _interpolated(scenario: Scenario, design: Disaggregated, share: float) -> FloatArray:
    """Parameters at a prefill share, linear in their logarithms over the share's logit.

    Beta is close to 1 / (rate of the stage that fills up first), which has a kink where prefill
    overtakes decode; so the slope is interpolated relative to it, and knee and smoothing with it,
    which leaves beta * knee / alpha between the two fits.
    """
    key = (Mix.of(scenario), design)
    if share in (0.0, 1.0):
        return np.array(_fitted(share, *key))
    logit = math.log(share) - math.log1p(-share)
    position = np.interp(logit, PREFILL_LOGITS, np.arange(len(PREFILL_LOGITS)))
    low = min(int(position), len(PREFILL_LOGITS) - 2)
    weight = float(position) - low
    slots = design.decode_slots
    ends = [
        np.log(np.array(_fitted(grid_share, *key)) / _slope_scale(grid_share, slots))
        for grid_share in (_grid_share(low), _grid_share(low + 1))
    ]
    between = np.exp((1.0 - weight) * ends[0] + weight * ends[1])
    return np.asarray(between * _slope_scale(share, slots))


def _grid_share(grid_index: int) -> float:
    return float(1.0 / (1.0 + np.exp(-PREFILL_LOGITS[grid_index])))


def _slope_scale(share: float, slots: int) -> FloatArray:
    """How alpha, beta, knee and smoothing follow the time per request of the fuller stage."""
    time = max(share, (1.0 - share) / slots)
    return np.tile([1.0, time, 1.0 / time, 1.0 / time], 2)


@lru_cache(maxsize=256)
def _fitted(share: float | None, mix: Mix, design: Servers) -> tuple[float, ...]:
    """Softplus parameters of mean and tail: those on disk, or made and kept there."""
    folder = _folder_of_kernels()
    if folder is None:
        return _fit(share, mix, design)
    path = folder / f"fit_{_fit_hash(share, mix, design)}.json"
    fit = _read_fit(path)
    if fit is None:
        fit = _fit(share, mix, design)
        _write_fit(path, fit)
    return fit


def _folder_of_kernels() -> Path | None:
    """Where numba keeps the compiled engine; None where it is not compiled, nor fits then kept."""
    stats: Any = getattr(engine.advance, "stats", None)
    return None if stats is None else Path(stats.cache_path)


def _fit_hash(share: float | None, mix: Mix, design: Servers) -> str:
    """Of all that a fit follows from, apart from the engine; a trace counts by its content."""
    tokens, sessions, trace = mix
    content = None if trace is None else trace.model_dump(exclude={"path"})
    turns = None if sessions is None else sessions.model_dump()
    how = [SERVERS, LOADS, WINDOW, WINDOWS, SEED]  # a test may set them
    servers = asdict(design) if isinstance(design, BatchingServer) else design.model_dump()
    key = [_sources_hash(), how, share, tokens.model_dump(), turns, servers, content]
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]


@lru_cache(maxsize=1)
def _sources_hash() -> str:
    """Of the modules that make a fit, and of the versions of the packages that they use."""
    digest = hashlib.sha256(f"{np.__version__} {version('scipy')}".encode())
    for name in (
        "batching_rates",
        "calibration",
        "latency_model",
        "measurements",
        "session_requests",
        "sessions",
        "tokens",
        "trace",
        "trace_file",
    ):
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()


def _read_fit(path: Path) -> tuple[float, ...] | None:
    """Eight finite positive numbers; None if there is no such file or it holds anything else."""
    try:
        fit = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(fit, list) or len(fit) != 2 * PARAMETERS:
        return None
    if not all(isinstance(value, float) and 0.0 < value < math.inf for value in fit):
        return None
    return tuple(fit)


def _write_fit(path: Path, fit: tuple[float, ...]) -> None:
    """No loss where it fails."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, json.dumps(fit))


def _fit(share: float | None, mix: Mix, design: Servers) -> tuple[float, ...]:
    """Softplus parameters of mean and tail, zero-load time 1."""
    n, latency, tail = measure(share, mix, design)
    return _softplus(n, latency) + _softplus(n, tail)


def _softplus(n: FloatArray, latency: FloatArray) -> tuple[float, ...]:
    """The constrained softplus nearest to some points in relative error."""
    from scipy.optimize import least_squares  # slow to import, and needed only here

    def model(p: FloatArray) -> LatencyModel:
        p = np.clip(p, -FARTHEST, FARTHEST)
        alpha, beta = np.exp(p[0]), np.exp(p[1])
        knee = RHO_MAX / (1.0 + np.exp(-p[2])) * alpha / beta
        return LatencyModel(alpha, beta, knee, np.exp(p[3]) * knee)

    def residuals(p: FloatArray) -> FloatArray:
        return np.asarray(np.log(model(p).at(n).latency / latency))

    # A queue limit at or below the slots keeps the curve flat, and noise may make it fall.
    slope = max((latency[-1] - latency[0]) / (n[-1] - n[0]), 1e-3 * latency[0])
    start = np.array([math.log(latency[0]), math.log(slope), 1.0, math.log(0.3)])
    fit = model(least_squares(residuals, start, method="trf").x)
    return float(fit.alpha), float(fit.beta), float(fit.knee), float(fit.smoothing)


def measure(share: float | None, mix: Mix, design: Servers) -> Curve:
    """How long requests take in a cell of zero-load time 1 that is loaded more and more.

    Args:
        share: Part of the zero-load time that is prefill; None for batching servers.
        mix: Tokens of the requests.
        design: The servers.
    """
    if isinstance(design, BatchingServer):
        return _measure_batching(mix, design)
    if share is None:
        raise ValueError(
            "share = None: the curve of disaggregated servers needs their prefill share"
        )
    params, state, arrivals, orders = _one_cell_rows(share, mix, design)
    in_system_s = np.zeros(len(LOADS))
    answered = np.zeros(len(LOADS))
    for window in range(WINDOWS):
        before = state.row[:, layout.ANSWERED].copy()
        target = np.full(len(LOADS), window + 1, dtype=np.int64)
        status, row = engine.advance(params, state, arrivals, orders, None, target)
        if status != engine.READY:
            raise RuntimeError(f"calibration row {row} ran out of buffer {status}; report this")
        if window > 0:
            in_system_s += state.row_time[:, layout.IN_SYSTEM_S]
            answered += state.row[:, layout.ANSWERED] - before
    histograms = state.histogram[:, layout.LATENCY]
    return Curve(
        n=in_system_s / (SERVERS * WINDOW * (WINDOWS - 1)),
        latency=in_system_s / answered,
        tail=np.array([quantile_s(histogram, [TAIL])[0] for histogram in histograms]),
    )


def _measure_batching(mix: Mix, server: BatchingServer) -> Curve:
    """`measure` for batching servers, which need no roots: one cell's log says it all."""
    moments = token_moments(*mix)
    unit_s = batching_zero_load_s(server, moments)
    rate_rps = SERVERS * batching_rate_rps(server, moments)
    rng = np.random.default_rng(SEED)
    count = math.ceil(1.1 * LOADS[-1] * rate_rps * unit_s * WINDOW * WINDOWS)
    spacing = rng.standard_exponential(count)
    prompt, output = _drawn(mix, rng, count)
    u_leaf = rng.random(count)
    start_s, end_s = WINDOW * unit_s, WINDOW * WINDOWS * unit_s
    curve = []
    for load in LOADS:
        arrival_s = np.cumsum(spacing) / (load * rate_rps)
        state, batches, arrivals = _one_batching_cell(server, count)
        arrivals.requests[0, 0] = np.column_stack(
            [arrival_s, prompt, output, np.zeros(count), u_leaf]
        )
        arrivals.stop[0, 0] = np.searchsorted(arrival_s, end_s)
        engine.serve_alone(state, batches, arrivals, np.zeros(1, np.int64), server.queue_limit)
        served = state.request[0, : arrivals.stop[0, 0]]
        done_s = served[:, layout.DONE_S]
        inside_s = np.clip(done_s, start_s, end_s) - np.clip(
            served[:, layout.ARRIVAL_S], start_s, end_s
        )
        answered = served[:, layout.SERVER] != layout.NONE
        answered &= (start_s < done_s) & (done_s <= end_s)
        late = answered & (served[:, layout.ARRIVAL_S] >= start_s)
        latencies_s = done_s[late] - served[late, layout.ARRIVAL_S]
        curve.append((inside_s.sum(), answered.sum(), np.quantile(latencies_s, TAIL)))
    in_system_s, finished, tail_s = np.array(curve).T
    return Curve(
        n=in_system_s / (SERVERS * (end_s - start_s)),
        latency=in_system_s / finished / unit_s,
        tail=tail_s / unit_s,
    )


def _one_batching_cell(
    server: BatchingServer, requests: int
) -> tuple[engine.State, engine.Batches, engine.Arrivals]:
    sizes = engine.Sizes(
        replications=1, roots=1, cells=1, servers=SERVERS, slots=1, queue=1, changes=2, probes=2,
        pool=requests, wire=1, log=0, arrivals=requests,
    )  # fmt: skip
    _, state, arrivals, _ = engine.allocate(sizes)
    engine.clear_row(0, state, arrivals)
    state.cell[..., layout.LIVE] = SERVERS
    batches = engine.allocate_batches(1, 1, SERVERS, server.max_batch)
    engine.clear_batches(0, batches)
    batches.limits[:] = server.limits
    batches.timing[:] = server.timing
    return state, batches, arrivals


def _one_cell_rows(
    share: float, mix: Mix, design: Disaggregated
) -> tuple[engine.Params, engine.State, engine.Arrivals, engine.Orders]:
    """One row a load: a root, a cell, no network; the same requests, closer together."""
    rng = np.random.default_rng(SEED)
    slots = design.decode_slots
    rate = SERVERS / max(share, (1.0 - share) / slots)
    count = math.ceil(1.1 * LOADS[-1] * rate * WINDOW * WINDOWS)
    spacing = rng.standard_exponential(count)
    prompt, output = _drawn(mix, rng, count)
    pool = min(count, SERVERS * design.queue_limit + math.ceil(LOADS[-1] * rate * WINDOW * 1.5))
    sizes = engine.Sizes(
        replications=len(LOADS), roots=1, cells=1, servers=SERVERS, slots=slots,
        queue=design.queue_limit, changes=2, probes=2, pool=pool, wire=pool, log=0,
        arrivals=count,
    )  # fmt: skip
    params, state, arrivals, orders = engine.allocate(sizes)
    params.shape[:] = 1, 1, slots, design.queue_limit, 0
    never_s = 1e18
    params.clock[:] = WINDOW, never_s, 0.0, WINDOW, never_s, never_s, 0.0
    params.service[..., layout.PREFILL_S_PER_TOKEN] = _s_per_token(share, prompt)
    params.service[..., layout.DECODE_S_PER_TOKEN] = _s_per_token(1.0 - share, output)
    params.change_s[..., 1] = math.inf
    params.change_live[..., 0] = SERVERS
    orders.base[:] = 1.0
    for r, load in enumerate(LOADS):
        engine.clear_row(r, state, arrivals)
        engine.hold_empty_reports(r, params, state)
        arrivals.requests[r, 0, :, layout.ARRIVAL_S] = np.cumsum(spacing) / (load * rate)
        arrivals.requests[r, 0, :, layout.PROMPT_TOKENS] = prompt
        arrivals.requests[r, 0, :, layout.OUTPUT_TOKENS] = output
        arrivals.requests[r, 0, :, layout.U_LEAF] = rng.random(count)
        arrivals.stop[r, 0] = count
    return params, state, arrivals, orders


def _drawn(mix: Mix, rng: np.random.Generator, count: int) -> TokenColumns:
    """Tokens of some requests, of which at least one has any."""
    prompt, output = request_tokens(*mix).draw(rng, count)
    if not (prompt.any() or output.any()):
        raise ScenarioError(
            f"tokens: none of {count:,} requests drawn has any, so there is no work to calibrate; "
            "raise mean_tokens or shape, or use another trace"
        )
    return prompt, output


def _s_per_token(stage: float, tokens: FloatArray) -> float:
    """Seconds per token with which a stage takes its part of the zero-load time on average.

    A stage without tokens never works: it has 0, and the zero-load time is the other stage's.
    """
    mean = float(np.mean(tokens))
    return stage / mean if mean > 0.0 else 0.0
