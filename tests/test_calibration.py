"""Latency curves against queueing theory and a closed loop, and the fit against the curves."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dlb_gym import calibration
from dlb_gym.batching_rates import batching_rate_rps, batching_zero_load_s
from dlb_gym.calibration import (
    LOADS,
    PREFILL_LOGITS,
    SERVERS,
    Mix,
    latency_parameters,
    measure,
    tail_parameters,
)
from dlb_gym.envs import DLBEnv
from dlb_gym.latency_model import RHO_MAX, LatencyModel
from dlb_gym.rates import nominal_rates_rps, token_moments, zero_load_times_s
from dlb_gym.scenario import TokenDistribution, Tokens
from dlb_gym.scenario_source import ScenarioError, load_scenario, override
from dlb_gym.server_design import BatchingServer, ContinuousBatching, Disaggregated
from dlb_gym.sessions import Sessions
from dlb_gym.tokens import token_source
from dlb_gym.trace import describe_trace
from tests.batching_model import Design, Job, serve
from tests.reference_choices import choose_server
from tests.scenarios_by_hand import two_cells
from tests.short_episodes import ring

TOKENS, DESIGN, SLOTS = Tokens(), Disaggregated(), 8
MIX = Mix(TOKENS, None, None)
SHARES = (1 / (1 + np.exp(-PREFILL_LOGITS))).tolist()
WINDOW = calibration.WINDOW * (calibration.WINDOWS - 1)
GRID = range(0, len(SHARES), 2)


def nominal_time(share: float) -> float:
    """1 / (nominal rate of a server): the stage that fills up first."""
    return max(share, (1 - share) / SLOTS)


def fitted(grid_index: int) -> LatencyModel:
    parameters = calibration._fitted(SHARES[grid_index], MIX, DESIGN)[:4]
    return LatencyModel(*(np.float64(value) for value in parameters))


def service_noise(share: float) -> float:
    """Relative sampling error of the lightest load's mean service time.

    Prompt 20 + Gamma(1.5) of mean 480, output 10 + Gamma(2) of mean 190 tokens.
    """
    prompt_cv, output_cv = 480 / math.sqrt(1.5) / 500, 190 / math.sqrt(2) / 200
    cv = math.hypot(share * prompt_cv, (1 - share) * output_cv)
    return cv / math.sqrt(LOADS[0] * SERVERS / nominal_time(share) * WINDOW)


@pytest.mark.parametrize("index", GRID)
def test_a_curve_starts_at_the_zero_load_time_and_ends_at_the_nominal_rate(index: int) -> None:
    share = SHARES[index]
    n, latency, _ = measure(share, MIX, DESIGN)
    assert abs(latency[0] - 1) < 4 * service_noise(share)
    assert np.all(np.diff(n) > 0)
    throughput = n / latency * nominal_time(share)
    # Where nothing overflows, throughput is the load; at 130 % it is the capacity.
    count = np.array(LOADS[:4]) * SERVERS / nominal_time(share) * WINDOW
    np.testing.assert_allclose(throughput[:4] / LOADS[:4], 1.0, atol=4 / np.sqrt(count.min()))
    assert throughput[-1] == pytest.approx(1.0, abs=0.04)


@pytest.mark.parametrize("index", GRID)
def test_the_fitted_slope_past_the_knee_is_one_over_the_nominal_rate(index: int) -> None:
    """In overload n requests wait for a server of rate m: l(n) ~ n / m."""
    model = fitted(index)
    assert model.beta / nominal_time(SHARES[index]) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("index", GRID)
def test_a_fit_keeps_its_constraint_and_follows_the_measured_points(index: int) -> None:
    model = fitted(index)
    assert min(model.alpha, model.beta, model.knee, model.smoothing) > 0
    assert model.beta * model.knee / model.alpha <= RHO_MAX * (1 + 1e-12) < 1
    n, latency, _ = measure(SHARES[index], MIX, DESIGN)
    error = model.at(n).latency / latency - 1
    assert np.abs(error).max() < 0.08
    assert math.sqrt(np.mean(error**2)) < 0.035


def test_a_curve_between_two_grid_shares_is_interpolated_close_to_a_measured_one() -> None:
    """global_six's cells spend about a tenth of their zero-load time in prefill."""
    scenario = two_cells()
    n, latency, _ = measure(0.1 / 1.1, MIX, DESIGN)
    alpha, beta, knee, smoothing = latency_parameters(scenario)[0]
    model = LatencyModel(alpha / 1.1, beta / 1.1, knee, smoothing)
    np.testing.assert_allclose(model.at(n).latency, latency, rtol=0.03)
    assert beta / 1.1 == pytest.approx(nominal_time(0.1 / 1.1), rel=0.06)
    assert beta * knee / alpha <= RHO_MAX * (1 + 1e-12)


def test_the_curve_follows_the_bottleneck_where_it_passes_from_decode_to_prefill() -> None:
    """At a share of 1/9 both stages serve 9 requests per zero-load time: the rate is highest."""
    rates = []
    for prefill_s in (0.09, 1 / 9, 0.14):
        document = {"cells.0.prefill_s_per_token": prefill_s / 500}
        document["cells.0.decode_s_per_token"] = (1 - prefill_s) / 200
        alpha, beta, *_ = latency_parameters(override(two_cells(), document))[0]
        rates.append(1 / beta)
        assert 1 / beta == pytest.approx(1 / nominal_time(prefill_s), rel=0.06)
        assert alpha == pytest.approx(1.0, rel=0.03)
    assert rates[1] > max(rates[0], rates[2])


def test_at_a_grid_share_the_interpolation_is_the_fit() -> None:
    share = SHARES[6]
    prefill_s, decode_s = share / 500, (1 - share) / 200
    scenario = override(
        two_cells(),
        {f"cells.{j}.{key}": value for j in (0, 1) for key, value in (
            ("prefill_s_per_token", prefill_s), ("decode_s_per_token", decode_s))},
    )  # fmt: skip
    model = fitted(6)
    expected = [model.alpha, model.beta, model.knee, model.smoothing]
    np.testing.assert_allclose(latency_parameters(scenario)[1], expected, rtol=1e-6)


def test_parameters_scale_with_the_zero_load_time_and_ignore_the_number_of_servers() -> None:
    scenario = two_cells()
    plain = latency_parameters(scenario)
    np.testing.assert_array_equal(plain[0], plain[1])  # ten and four servers
    slower = {"cells.1.prefill_s_per_token": 6e-4, "cells.1.decode_s_per_token": 15e-3}
    tripled = latency_parameters(override(scenario, slower))
    np.testing.assert_allclose(tripled[1], plain[1] * [3, 3, 1, 1], rtol=1e-9)
    assert plain.shape == (2, 4)


def closed_loop_rate(share: float, clients: int, servers: int, completions: int) -> float:
    """Completions per time and server when every completion sends the next request at once."""
    rng = np.random.default_rng(1)
    prompt, output = token_source(TOKENS, None).draw(rng, completions + clients)
    u_leaf = rng.random(completions + clients)
    prefill, decode = share * prompt / prompt.mean(), (1 - share) * output / output.mean()
    tokens, engine_free = [0] * servers, [0.0] * servers
    slots = [[0.0] * SLOTS for _ in range(servers)]
    events: list[tuple[float, int, int, int]] = []  # time, server, tokens that leave, 1 if done

    def send(now: float, index: int) -> None:
        s = choose_server(float(u_leaf[index]), tokens)
        tokens[s] += int(prompt[index] + output[index])
        engine_free[s] = max(now, engine_free[s]) + float(prefill[index])
        done = max(engine_free[s], heapq.heappop(slots[s])) + float(decode[index])
        heapq.heappush(slots[s], done)
        heapq.heappush(events, (engine_free[s], s, int(prompt[index]), 0))
        heapq.heappush(events, (done, s, int(output[index]), 1))

    for index in range(clients):
        send(0.0, index)
    finished, sent, started, warm = 0, clients, 0.0, completions // 4
    while finished < completions:
        now, s, leaving, done_now = heapq.heappop(events)
        tokens[s] -= leaving
        if done_now:
            finished += 1
            if finished == warm:
                started = now
            if sent < len(u_leaf):
                send(now, sent)
                sent += 1
    return (completions - warm) / (now - started) / servers


@pytest.mark.parametrize(("per_server", "tolerance"), [(3, 0.04), (8, 0.08), (20, 0.04)])
def test_the_models_rate_is_that_of_a_closed_loop(per_server: int, tolerance: float) -> None:
    """mu*(n) = n / l(n), written anew with a fixed number in flight: light, at the knee, past it.

    At the knee a number in flight that varies, as in the calibration, serves less than a fixed one.
    """
    share = 0.1 / 1.1
    alpha, beta, knee, smoothing = latency_parameters(two_cells())[0]
    model = LatencyModel(alpha / 1.1, beta / 1.1, knee, smoothing)
    measured = closed_loop_rate(share, SERVERS * per_server, SERVERS, 8_000)
    assert model.at(np.float64(per_server)).rate == pytest.approx(measured, rel=tolerance)


def tail_quantile(share: float) -> tuple[float, float]:
    """95th percentile of a service alone, by draws of its own, and the density there."""
    rng = np.random.default_rng(7)
    prompt = 20 + np.floor(rng.gamma(1.5, 480 / 1.5, 1_000_000) + 0.5)
    output = 10 + np.floor(rng.gamma(2.0, 190 / 2.0, 1_000_000) + 0.5)
    low, middle, high = np.quantile(
        share * prompt / 500 + (1 - share) * output / 200, [0.94, 0.95, 0.96]
    )
    return float(middle), float(0.02 / (high - low))


@pytest.mark.parametrize("index", GRID)
def test_a_tail_starts_at_the_95th_percentile_of_a_service(index: int) -> None:
    """Of m requests the quantile q errs by sqrt(q (1 - q) / m) / density."""
    share = SHARES[index]
    expected, density = tail_quantile(share)
    requests = LOADS[0] * SERVERS / nominal_time(share) * WINDOW
    noise = math.sqrt(0.95 * 0.05 / requests) / density
    assert measure(share, MIX, DESIGN).tail[0] == pytest.approx(expected, abs=3.5 * noise)


@pytest.mark.parametrize("index", GRID)
def test_a_tail_lies_above_the_mean_and_ends_with_what_fits_into_a_server(index: int) -> None:
    """In overload all wait for the same full queues: the tail approaches the mean."""
    n, latency, tail = measure(SHARES[index], MIX, DESIGN)
    ratio = tail / latency
    assert (ratio > 1.1).all()
    assert ratio[-1] < 0.75 * ratio[0]
    parameters = calibration._fitted(SHARES[index], MIX, DESIGN)[4:]
    model = LatencyModel(*(np.float64(value) for value in parameters))
    assert min(parameters) > 0.0
    np.testing.assert_allclose(model.at(n).latency, tail, rtol=0.12)


def test_the_tail_of_global_six_is_that_of_its_services() -> None:
    """Its cells spend about a tenth of their time in prefill, between two shares of the grid."""
    scenario = load_scenario("global_six")
    expected, _ = tail_quantile(0.1 / 1.1)
    model = LatencyModel(*tail_parameters(scenario).T)
    ratio = model.at(np.zeros(6)).latency / zero_load_times_s(scenario)
    np.testing.assert_allclose(ratio, expected, rtol=0.03)
    faster = override(
        scenario,
        {f"cells.{j}.{stage}_s_per_token": getattr(scenario.cells[j], f"{stage}_s_per_token") / 2
         for j in range(6) for stage in ("prefill", "decode")},
    )  # fmt: skip
    halved = tail_parameters(scenario) * [0.5, 0.5, 1.0, 1.0]
    np.testing.assert_allclose(tail_parameters(faster), halved, rtol=1e-9)


def test_the_tail_of_batching_servers_is_that_of_requests_served_alone() -> None:
    """At a tenth of the rate iterations are hardly longer than alone: decode steps dominate."""
    server, unit_s = batching("h100"), 6.08
    moments = token_moments(*MIX)
    assert batching_zero_load_s(server, moments) == pytest.approx(unit_s, rel=0.01)
    expected, _ = tail_quantile(0.0)
    found = measure(None, MIX, server).tail[0]
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("limit", [1, 4, 8])
def test_a_queue_limit_below_the_slots_leaves_a_flat_finite_curve(limit: int) -> None:
    scenario = load_scenario(ring(2, server={"queue_limit": limit}))
    parameters = latency_parameters(scenario)[0]
    assert np.isfinite(parameters).all()
    assert (parameters > 0).all()
    model = LatencyModel(*parameters)
    n = np.arange(1.0, limit + 1)
    np.testing.assert_allclose(model.at(n).latency, 1.1, rtol=0.1)


def test_an_empty_cells_latency_is_about_its_zero_load_time() -> None:
    parameters: NDArray[np.float64] = latency_parameters(load_scenario("global_six"))
    model = LatencyModel(*parameters.T)
    prefill_s = 500 * np.array([2.0, 1.6, 2.2, 1.8, 2.4, 1.7]) * 1e-4
    decode_s = 200 * np.array([5.0, 4.0, 5.6, 4.2, 6.0, 4.6]) * 1e-3
    np.testing.assert_allclose(model.at(np.zeros(6)).latency, prefill_s + decode_s, rtol=0.03)


def one_stage_trace(folder: Path, stage: str) -> Path:
    """Requests a second apart of 100 to 500 tokens, all in one stage: a mean of 300."""
    lines = ["timestamp,input_length,output_length"]
    for k in range(200):
        tokens = 100 * (1 + 7 * k % 5)
        lines.append(f"{1_000 * k}," + (f"{tokens},0" if stage == "prefill" else f"0,{tokens}"))
    path = folder / f"{stage}.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(("stage", "share"), [("prefill", 1.0), ("decode", 0.0)])
def test_a_trace_without_tokens_for_a_stage_is_measured_at_that_share(
    tmp_path: Path, stage: str, share: float
) -> None:
    """Scoring requests, say: 300 prompt tokens take 0.06 s, or 300 output tokens 1.5 s."""
    trace = describe_trace(one_stage_trace(tmp_path, stage))
    scenario = two_cells(demand={"utilisation": 0.5, "trace": trace.model_dump()})
    unit_s = 0.06 if stage == "prefill" else 1.5
    np.testing.assert_allclose(zero_load_times_s(scenario), unit_s)
    n, latency, _ = measure(share, Mix(TOKENS, None, trace), DESIGN)
    assert latency[0] == pytest.approx(1.0, abs=0.1)
    throughput = n / latency * nominal_time(share)
    assert throughput[-1] == pytest.approx(1.0, abs=0.04)
    alpha, beta, knee, smoothing = latency_parameters(scenario)[0]
    model = LatencyModel(alpha / unit_s, beta / unit_s, knee, smoothing)
    np.testing.assert_allclose(model.at(n).latency, latency, rtol=0.08)


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_an_episode_of_a_trace_without_tokens_for_a_stage_runs(tmp_path: Path, stage: str) -> None:
    changes = {"horizon_s": 10.0, "warmup_s": 5.0}
    env = DLBEnv(trace=one_stage_trace(tmp_path, stage), changes=changes)
    observation, _ = env.reset(seed=0)
    truncated = False
    while not truncated:
        assert np.isfinite(observation).all()
        observation, reward, _, truncated, info = env.step(np.ones((6, 6), np.float32))
        assert math.isfinite(reward)
    metrics = info["metrics"]
    assert metrics["answered"] > 100
    assert metrics["latency_mean_s"] > 0.9 * metrics["zero_load_time_s"]


def test_tokens_too_rare_to_be_drawn_are_refused_by_name() -> None:
    rare = TokenDistribution(loc_tokens=0, shape=1.0, mean_tokens=0.01)
    with pytest.raises(ScenarioError, match=r"tokens: none of .* raise mean_tokens or shape"):
        measure(0.5, Mix(Tokens(prompt=rare, output=rare), None, None), DESIGN)


def test_disaggregated_servers_need_a_share() -> None:
    with pytest.raises(
        ValueError, match="the curve of disaggregated servers needs their prefill share"
    ):
        measure(None, MIX, DESIGN)


BATCHING = {
    "h100": {},
    "b200": {"preset": "b200"},
    "small cache": {"kv_tokens": 10_000},
    "small batch": {"max_batch": 8, "queue_limit": 32},
    "drafts": {"draft_tokens": 4, "acceptance": 0.7},
    "impatient": {"max_wait_s": 2.0},
}  # fmt: skip


def batching(name: str) -> BatchingServer:
    return ContinuousBatching.model_validate(BATCHING[name]).on()


@pytest.mark.parametrize("name", BATCHING)
def test_a_batching_curve_starts_alone_and_ends_at_the_nominal_rate(name: str) -> None:
    server, moments = batching(name), token_moments(*MIX)
    n, latency, _ = measure(None, MIX, server)
    assert np.all(np.diff(n) > 0)
    # At a tenth of the rate some are served together: iterations are a little longer than alone.
    assert 0.97 < latency[0] < 1.1
    rate = batching_rate_rps(server, moments) * batching_zero_load_s(server, moments)
    throughput = n / latency / rate
    np.testing.assert_allclose(throughput[:8] / LOADS[:8], 1.0, atol=0.05)
    assert throughput[-1] == pytest.approx(1.0, abs=0.07)


@pytest.mark.parametrize("name", BATCHING)
def test_a_batching_fit_keeps_its_constraint_and_follows_the_measured_points(name: str) -> None:
    model = LatencyModel(
        *(np.float64(value) for value in calibration._fitted(None, MIX, batching(name))[:4])
    )
    assert min(model.alpha, model.beta, model.smoothing) > 0
    assert 0 <= model.beta * model.knee / model.alpha <= RHO_MAX * (1 + 1e-12)
    n, latency, _ = measure(None, MIX, batching(name))
    error = model.at(n).latency / latency - 1
    assert np.abs(error).max() < 0.08
    assert math.sqrt(np.mean(error**2)) < 0.035


def test_a_batching_curve_is_littles_law_of_the_plain_model() -> None:
    """One load, served by the model in plain Python from requests of its own."""
    server, unit_s = batching("h100"), 6.08
    n, latency, _ = measure(None, MIX, server)
    rate_rps = LOADS[5] * SERVERS * batching_rate_rps(server, token_moments(*MIX))
    rng = np.random.default_rng(2)
    leaf_s = np.cumsum(rng.exponential(1 / rate_rps, 5_000))
    prompt, output = token_source(TOKENS, None).draw(rng, 5_000)
    jobs = [
        Job(k, float(leaf_s[k]), int(prompt[k]), int(output[k]), float(rng.random()))
        for k in range(5_000)
    ]
    fields = asdict(server)
    serve(Design(prefill_budget=fields.pop("prefill_budget_tokens"), **fields), jobs, SERVERS, 0)
    served_s = np.mean([job.done_s - job.leaf_s for job in jobs[1_000:-1_000]])
    assert served_s == pytest.approx(latency[5] * unit_s, rel=0.03)
    assert rate_rps * served_s / SERVERS == pytest.approx(n[5], rel=0.03)


def test_equal_batching_servers_share_a_curve_and_others_have_their_own() -> None:
    scenario = two_cells(server={"kind": "continuous_batching"})
    equal = latency_parameters(scenario)
    np.testing.assert_array_equal(equal[0], equal[1])
    mixed = latency_parameters(override(scenario, {"cells.1.hardware": "b200"}))
    np.testing.assert_array_equal(mixed[0], equal[0])
    # Both batch the same way, the newer one about five times as fast.
    assert 4 < mixed[0, 0] / mixed[1, 0] < 7
    assert 4 < mixed[0, 1] / mixed[1, 1] < 7
    assert 1 / equal[0, 1] == pytest.approx(nominal_rates_rps(scenario)[0] / 10, rel=0.1)


@pytest.mark.parametrize("server", [{}, {"kind": "continuous_batching", "preset": "b200"}])
def test_the_curve_of_sessions_ends_at_the_rate_of_their_longer_prompts(
    server: dict[str, str],
) -> None:
    """Prompts of 1,835 tokens on average instead of 500, as if nothing were cached."""
    scenario = two_cells(demand={"sessions": {}}, server=server)
    plain = two_cells(server=server)
    beta = latency_parameters(scenario)[0, 1]
    assert 1 / beta == pytest.approx(nominal_rates_rps(scenario)[0] / 10, rel=0.12)
    assert nominal_rates_rps(scenario)[0] < 0.9 * nominal_rates_rps(plain)[0]


Fit = Callable[[], tuple[float, ...]]
KEPT = (1.5, 0.1, 7.0, 0.3, 3.0, 0.2, 7.5, 0.4)


@pytest.fixture
def fit_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fit:
    """A fit in a process that has made none yet; its folder for fits is empty at first."""
    monkeypatch.setattr(calibration, "_folder_of_kernels", lambda: tmp_path / "kernels")

    def fit() -> tuple[float, ...]:
        calibration._fitted.cache_clear()
        return calibration._fitted(SHARES[8], MIX, DESIGN)

    return fit


def none_made(*_: object) -> tuple[float, ...]:
    raise AssertionError("a fit was made")


def test_a_fit_is_kept_and_read_back_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fit_anew: Fit
) -> None:
    made = calibration._fit(SHARES[8], MIX, DESIGN)
    assert fit_anew() == made
    kept = list((tmp_path / "kernels").iterdir())
    assert [path.suffix for path in kept] == [".json"]
    monkeypatch.setattr(calibration, "_fit", none_made)
    assert fit_anew() == made


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff", b"{}", b"[1.0, 1.0, 1.0, 1.0]", b"[" * 100_000]
    + [b"[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, %b]" % last
       for last in (b"NaN", b"-1.0", b"Infinity", b"1", b"true")],
)  # fmt: skip
def test_what_is_no_fit_is_made_anew_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fit_anew: Fit, text: bytes
) -> None:
    monkeypatch.setattr(calibration, "_fit", lambda *_: KEPT)
    fit_anew()
    (path,) = (tmp_path / "kernels").iterdir()
    path.write_bytes(text)
    assert fit_anew() == KEPT
    monkeypatch.setattr(calibration, "_fit", none_made)
    assert fit_anew() == KEPT


def test_a_folder_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fit_anew: Fit
) -> None:
    monkeypatch.setattr(calibration, "_fit", lambda *_: KEPT)
    (tmp_path / "kernels").write_text("a file where the folder should be")
    assert fit_anew() == KEPT


def test_fits_of_other_tokens_servers_or_traces_have_other_names(tmp_path: Path) -> None:
    trace = describe_trace(one_stage_trace(tmp_path, "decode"))
    elsewhere = trace.model_copy(update={"path": "moved.csv"})
    others = [
        (0.5, MIX, DESIGN),
        (0.25, MIX, DESIGN),
        (0.5, MIX._replace(tokens=Tokens(prompt=TOKENS.output)), DESIGN),
        (0.5, MIX._replace(sessions=Sessions()), DESIGN),
        (0.5, MIX._replace(sessions=Sessions(mean_turns=2.0)), DESIGN),
        (0.5, MIX, Disaggregated(queue_limit=33)),
        (0.5, MIX._replace(trace=trace), DESIGN),
        (0.5, MIX._replace(trace=trace.model_copy(update={"sha256": "0" * 64})), DESIGN),
        (None, MIX, batching("h100")),
        (None, MIX, batching("b200")),
        (None, MIX, batching("impatient")),
    ]
    assert len({calibration._fit_hash(*each) for each in others}) == len(others)
    mixes = [MIX._replace(trace=each) for each in (trace, elsewhere)]
    same = [calibration._fit_hash(0.5, mix, DESIGN) for mix in mixes]
    assert same[0] == same[1]


@pytest.mark.parametrize("name", ["SERVERS", "WINDOW", "WINDOWS", "SEED"])
def test_a_fit_made_in_another_way_has_another_name(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    usual = calibration._fit_hash(0.5, MIX, DESIGN)
    monkeypatch.setattr(calibration, name, getattr(calibration, name) + 1)
    assert calibration._fit_hash(0.5, MIX, DESIGN) != usual


def test_a_curve_without_a_flat_part_is_fitted_too() -> None:
    """Measured from a trace of very unequal tokens: its fit once ran off to infinity."""
    n = np.array([0.0859, 0.3418, 0.7061, 0.9709, 1.2561, 1.9148, 2.5602, 3.2816, 4.2669, 5.9916,
                  10.5741, 20.0767])  # fmt: skip
    latency = np.array([0.7159, 0.98, 1.2723, 1.4966, 1.6446, 2.266, 2.8766, 3.5098, 4.3988,
                        5.947, 10.5346, 20.1018])  # fmt: skip
    alpha, beta, knee, smoothing = calibration._softplus(n, latency)
    assert min(alpha, beta, knee, smoothing) > 0.0
    found = LatencyModel(*np.array([alpha, beta, knee, smoothing])).at(n).latency
    assert found == pytest.approx(latency, rel=0.1)
