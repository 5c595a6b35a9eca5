from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dlb_gym import evaluation, runs
from dlb_gym.bounds import best_routing, bounds
from dlb_gym.decision import Decision
from dlb_gym.evaluation import rollout, run_all
from dlb_gym.measurements import bin_edges_s
from dlb_gym.policy import Policy, proportional
from dlb_gym.rates import root_rates_rps
from dlb_gym.runs import Run, batches, require_playable, seeded
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import override
from dlb_gym.trace import describe_trace
from tests.full_disk import room_for
from tests.scenarios_by_hand import two_cells

RANDOM = "baselines.static:WeightedRandom"
GRADIENT = {"policy": "baselines.discrete:Discrete", "keywords": {"cost": "gradient"}}


def short(**changes: Any) -> Scenario:
    return override(two_cells(), {"warmup_s": 2.0, "horizon_s": 6.0, **changes})


class Uniform(Policy):
    """Every cell the same share."""

    name, information = "uniform", "local"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        arcs = self.fields(observation)["admissible"] > 0.0
        return Decision(proportional(np.ones(arcs.shape), arcs))


class Breaking(Uniform):
    """Fails on seeds from 7 on."""

    def reset(self, spec: Any, num_replications: int, seed: int) -> None:
        super().reset(spec, num_replications, seed)
        if seed >= 7:
            raise RuntimeError("broken on purpose")


UNIFORM = f"{__name__}:Uniform"
BREAKING = f"{__name__}:Breaking"


def test_all_policies_meet_the_same_requests_and_leave_none_unfinished(tmp_path: Path) -> None:
    runs = [
        run
        for policy in ({"policy": RANDOM}, GRADIENT, {"policy": UNIFORM})
        for run in seeded(Run(**policy, scenario=short()), 2)  # type: ignore[arg-type]
    ]
    records = [result.record for result in run_all(runs, tmp_path)]
    assert [record["requests"] for record in records] == 3 * [r["requests"] for r in records[:2]]
    assert all(record["unfinished"] == 0 for record in records)
    assert all(r["answered"] + r["errors"] == r["requests"] > 100 for r in records)


def test_a_row_does_not_depend_on_its_batch() -> None:
    runs = seeded(Run(**GRADIENT, scenario=short()), 3)  # type: ignore[arg-type]
    together = rollout(runs)
    for run, result in zip(runs, together, strict=True):
        assert rollout([run]) == [result]


def test_settling_is_played_and_not_measured() -> None:
    settled = Run(UNIFORM, scenario=short(settle_s=4.0), timeline=True)
    (result,) = rollout([settled])
    offered_rps = 0.5 * 112.0
    assert result.record["requests"] == pytest.approx(offered_rps * 6.0, rel=0.25)
    assert result.timeline is not None
    assert result.timeline["time_s"][0] < 0.0 < result.timeline["time_s"][-1] < 6.0


def test_the_histogram_holds_every_answered_request_near_the_mean() -> None:
    (result,) = rollout([Run(UNIFORM, scenario=short())])
    edges = bin_edges_s()
    count = sum(result.histogram.values())
    mean_s = sum((edges[b] + edges[b + 1]) / 2 * c for b, c in result.histogram.items()) / count
    assert count == result.record["answered"]
    assert mean_s == pytest.approx(result.record["latency_mean_s"], rel=0.01)


def test_errors_cost_their_penalty_in_the_latency_with_errors() -> None:
    crowded = short(**{"demand.utilisation": 3.0, "server.queue_limit": 4})
    (result,) = rollout([Run(UNIFORM, scenario=crowded)])
    record = result.record
    assert record["errors"] > 0
    by_hand = record["answered"] * record["latency_mean_s"] + record["errors"] * 10.0 * 1.1
    assert record["latency_with_errors_s"] == pytest.approx(by_hand / record["requests"])


def test_a_run_without_requests_has_no_latency_and_says_null(tmp_path: Path) -> None:
    idle = short(**{"demand.utilisation": 1e-6})
    (result,) = run_all([Run(UNIFORM, scenario=idle)], tmp_path)
    assert result.record["answered"] == 0
    assert result.record["latency_mean_s"] is None
    assert result.record["latency_p99_s"] is None
    (file,) = (tmp_path / "results").iterdir()
    assert "NaN" not in file.read_text()


def test_time_lines_share_out_all_requests_and_follow_the_control_interval() -> None:
    (result,) = rollout([Run(UNIFORM, scenario=short(horizon_s=120.0), timeline=True)])
    columns = result.timeline
    assert columns is not None
    assert len(columns["time_s"]) == 120  # windows of a second
    np.testing.assert_allclose(np.sum(columns["share"], axis=1), 1.0, atol=2e-4)
    routing = np.mean(columns["routing"], axis=0)
    np.testing.assert_allclose(routing, 0.5, atol=0.05)
    offered = np.array([28.0 / 80.0, 28.0 / 32.0])  # half of 56/s each
    np.testing.assert_allclose(np.mean(columns["utilisation"], axis=0), offered, rtol=0.1)


def test_time_lines_have_at_most_300_windows() -> None:
    long = short(**{"horizon_s": 1000.0, "control_interval_s": 1.0, "demand.utilisation": 0.02})
    (result,) = rollout([Run(UNIFORM, scenario=long, timeline=True)])
    assert result.timeline is not None
    assert 200 < len(result.timeline["time_s"]) <= 300


def test_the_label_holds_the_control_interval() -> None:
    (result,) = rollout([Run(**GRADIENT, scenario=short())])  # type: ignore[arg-type]
    assert result.record["label"] == "disc-gradient @ 100 ms"


def test_finished_runs_are_read_and_not_computed(tmp_path: Path, monkeypatch: Any) -> None:
    runs = seeded(Run(UNIFORM, scenario=short()), 2)
    first = run_all(runs, tmp_path)

    def refuse(batch: Any) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setattr(evaluation, "rollout", refuse)
    counts: list[int] = []
    assert run_all(runs, tmp_path, on_finished=counts.append) == first
    assert sum(counts) == 2


def test_a_crash_keeps_what_was_finished_and_leaves_no_partial_file(tmp_path: Path) -> None:
    runs = [Run(BREAKING, scenario=short(), seed=seed) for seed in (0, 7)]
    with pytest.raises(RuntimeError, match="broken on purpose"):
        run_all(runs, tmp_path)
    (file,) = (tmp_path / "results").iterdir()
    assert file.name == f"{runs[0].digest}.json"
    assert json.loads(file.read_text())["record"]["seed"] == 0


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    run = Run(UNIFORM, scenario=short())
    first = run_all([run], tmp_path)
    path = tmp_path / "results" / f"{run.digest}.json"
    whole = path.read_bytes()
    digits = whole.replace(b"5", b"6", 1)
    assert digits != whole
    without = b"{}"
    for damaged in (
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        without,
        digits,
        whole[:-9],
    ):
        path.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=rf"{run.digest}\.json is no result of an evaluation.*; delete"
        ):
            run_all([run], tmp_path)
    path.write_bytes(digits)
    told = r"\(it is not what was written: its checksum is another one\); delete it$"
    with pytest.raises(ValueError, match=told):
        run_all([run], tmp_path)
    path.write_bytes(whole)
    assert run_all([run], tmp_path) == first


def test_a_folder_in_a_results_place_is_named(tmp_path: Path) -> None:
    run = Run(UNIFORM, scenario=short())
    (tmp_path / "results" / f"{run.digest}.json").mkdir(parents=True)
    told = r"\.json is no file, where the result of a run belongs; delete it$"
    with pytest.raises(ValueError, match=told):
        run_all([run], tmp_path)


def test_the_result_of_another_run_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    one, other = (Run(UNIFORM, scenario=short(), seed=seed) for seed in (0, 5))
    run_all([one], tmp_path)
    folder = tmp_path / "results"
    (folder / f"{one.digest}.json").rename(folder / f"{other.digest}.json")
    with pytest.raises(ValueError, match=r"\(it is that of another run\); delete it"):
        run_all([other], tmp_path)


def test_a_full_disk_keeps_what_was_finished(tmp_path: Path) -> None:
    """Room for one result; with more room the others are computed and the first is read."""
    runs = seeded(Run(UNIFORM, scenario=short()), 3)
    expected = run_all(runs, tmp_path / "roomy")
    with room_for(1), pytest.raises(OSError, match="No space left on device"):
        run_all(runs, tmp_path / "full")
    (file,) = (tmp_path / "full" / "results").iterdir()
    assert file.name == f"{runs[0].digest}.json"
    counts: list[int] = []
    assert run_all(runs, tmp_path / "full", on_finished=counts.append) == expected
    assert counts == [1, 2]


def test_whatever_decides_a_result_changes_its_digest(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(b"1")
    run = Run(UNIFORM, scenario=short(), files=(str(weights),))
    others = [
        replace(run, seed=1),
        replace(run, policy=RANDOM),
        replace(run, keywords={"cost": "rif"}),
        replace(run, scenario=short(settle_s=1.0)),
        replace(run, label="other"),
        replace(run, timeline=True),
    ]
    digests = {run.digest, *(other.digest for other in others)}
    weights.write_bytes(b"2")
    digests.add(replace(run).digest)
    assert len(digests) == 8
    assert replace(run).digest == replace(run).digest


def test_the_policys_own_code_is_part_of_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "strangers_policy.py"
    digests = []
    for text in ("one = 1", "one = 2"):
        module.write_text(text)
        runs.source_digest.cache_clear()
        digests.append(Run("strangers_policy:one", scenario=short()).digest)
    runs.source_digest.cache_clear()
    assert digests[0] != digests[1]


def test_families_draw_a_scenario_for_every_seed() -> None:
    changes = {"warmup_s": 1.0, "horizon_s": 2.0}
    runs = seeded(Run(UNIFORM, family="appendix_b", changes=changes), 2, first=3)
    first, second = (result.record for result in rollout(runs))
    assert first["scenario"] == second["scenario"] == "appendix_b"
    assert first["scenario_digest"] != second["scenario_digest"]
    assert first["horizon_s"] == 2.0


def test_trials_play_one_drawn_system_under_several_seeds() -> None:
    changes = {"warmup_s": 1.0, "horizon_s": 2.0}
    run = Run(UNIFORM, family="appendix_b", changes=changes, trials=2)
    results = [result.record for result in rollout(seeded(run, 4, first=6))]
    digests = [record["scenario_digest"] for record in results]
    assert digests[0] == digests[1] != digests[2] == digests[3]
    assert len({record["requests"] for record in results}) == 4
    alone = rollout(seeded(Run(UNIFORM, family="appendix_b", changes=changes), 1, first=6))
    assert alone[0].record["requests"] == results[0]["requests"]  # the first trial is the system's
    for wrong in ({"trials": 0, "family": "appendix_b"}, {"trials": 2, "scenario": short()}):
        with pytest.raises(ValueError, match=r"trials = \d must be at least 1, and more than 1 be"):
            Run(UNIFORM, **wrong)  # type: ignore[arg-type]


def test_an_oracle_plays_the_optimum_of_each_rows_scenario() -> None:
    runs = seeded(
        Run(
            "baselines.optimum:StaticOptimum", family="appendix_b",
            changes={"warmup_s": 1.0, "horizon_s": 20.0}, timeline=True,
        ), 2, first=5,
    )  # fmt: skip
    for run, result in zip(runs, rollout(runs), strict=True):
        scenario = run.source().scenario(0, run.seed, 0)
        assert result.record["bound_fluid_s"] == bounds(scenario).fluid_s
        assert result.record["information"] == "oracle"
    played = rollout([replace(runs[0], timeline=True)])[0].timeline
    assert played is not None
    expected = best_routing(runs[0].source().scenario(0, runs[0].seed, 0)).routing
    demand = np.array(root_rates_rps(runs[0].source().scenario(0, runs[0].seed, 0)))
    share = (demand[:, None] * expected).sum(axis=0) / demand.sum()
    assert np.mean(played["share"], axis=0) == pytest.approx(share, abs=0.03)


def test_batches_hold_seeds_that_follow_each_other() -> None:
    def seeds_of(seeds: list[int]) -> list[list[int]]:
        runs = [Run(UNIFORM, scenario=short(), seed=seed) for seed in seeds]
        return [[run.seed for run in batch] for batch in batches(runs)]

    assert seeds_of([3, 1, 2, 7]) == [[1, 2, 3], [7]]
    assert [len(batch) for batch in seeds_of(list(range(100)))] == [64, 36]


def test_jobs_give_the_same_results(tmp_path: Path) -> None:
    runs = [Run(**GRADIENT, scenario=short(), seed=s) for s in (1, 5)]  # type: ignore[arg-type]
    assert run_all(runs, tmp_path / "two", jobs=2) == run_all(runs, tmp_path / "one")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        *(
            ({"policy": policy}, f'policy = {policy!r} must be "module:attribute", as in "base')
            for policy in ("nowhere", "nowhere:", ":Policy")
        ),
        ({"seed": -1}, "seed = -1 is negative; seeds must be at least 0"),
        ({"family": "appendix_b"}, "either a scenario or a family; give exactly one of them"),
        ({"scenario": None}, "either a scenario or a family; give exactly one of them"),
        (
            {"changes": {"settle_s": 1.0}},
            "belong to a family; override the scenario itself instead",
        ),
        ({"keywords": {"cost": float("nan")}}, "of a Run must be finite JSON values: .*; give num"),
        ({"keywords": {"cost": object()}}, "of a Run must be finite JSON values: .*; give num"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Run(**{"policy": UNIFORM, "scenario": short(), **keywords})


@pytest.mark.parametrize(
    ("policy", "keywords", "message"),
    [
        ("no_such_module:X", {}, "policy 'no_such.*:X' cannot be imported: .*; correct its name"),
        ("baselines.static:Nothing", {}, "'.*:Nothing' cannot be imported: .*; correct its name"),
        (UNIFORM, {"cost": 1}, r"does not take \{'cost': 1\}: .*; correct its keywords"),
        ("builtins:dict", {}, "made a dict, which is no dlb_gym.policy.Policy; name a subclass"),
    ],
)
def test_a_policy_that_cannot_be_made_is_named(
    policy: str, keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Run(policy, keywords, short()).make_policy()


class Picky(Uniform):
    """Takes three cells only."""

    name = "picky"

    def reset(self, spec: Any, num_replications: int, seed: int) -> None:
        if spec.num_cells != 3:
            raise ValueError(f"picky takes 3 cells, not {spec.num_cells}")


MNLB = "baselines.mnlb:MNLB"


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([Run(UNIFORM, scenario=short()) for _ in range(2)], "'uniform'"),
        (
            [Run(MNLB, {"period_s": p}, short()) for p in (5.0, 10.0)],
            r"named 'mnlb' in the results: .*5\.0.*10\.0.*; name each policy once, or give those",
        ),
        ([Run(f"{__name__}:Picky", scenario=short())], "picky takes 3 cells, not 2"),
        (
            [Run("no_such_module:X", scenario=short())],
            "module 'no_such_module' cannot be imported: .*; install it or correct its name",
        ),
        (
            [Run(UNIFORM, family="appendix_b", changes={"horizn_s": 1.0})],
            "nearest valid key: 'horizon_s'",
        ),
    ],
)
def test_what_cannot_be_played_or_told_apart_leaves_no_folder(
    tmp_path: Path, runs: list[Run], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_all(runs, tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_labels_tell_policies_with_other_arguments_apart() -> None:
    require_playable(
        [Run(MNLB, {"period_s": p}, short(), label=f"mnlb-{p:g}-s") for p in (5.0, 10.0)]
    )
    require_playable(seeded(Run(MNLB, scenario=short()), 3))
    require_playable([Run(MNLB, scenario=short(settle_s=settle_s)) for settle_s in (0.0, 1.0)])


def test_a_record_says_how_long_a_lap_of_its_trace_lasts(tmp_path: Path) -> None:
    """4 requests of 500 and 200 tokens offered at 0.5 * 112/s."""
    trace = tmp_path / "trace.csv"
    rows = [f"{k},500,200" for k in range(4)]
    trace.write_text("\n".join(["arrival_time,prompt_len,output_len", *rows]) + "\n")
    traced = short(**{"demand.trace": describe_trace(trace).model_dump()})
    (with_trace,) = rollout([Run(UNIFORM, scenario=traced)])
    (without,) = rollout([Run(UNIFORM, scenario=short())])
    assert with_trace.record["trace_lap_s"] == pytest.approx(4 / 56.0)
    assert without.record["trace_lap_s"] is None


def test_runs_that_cannot_share_a_batch_are_refused() -> None:
    with pytest.raises(
        ValueError, match="differ in seed only, seeds one after the other; use run_all for"
    ):
        rollout([Run(UNIFORM, scenario=short(), seed=1), Run(UNIFORM, scenario=short(), seed=3)])
    with pytest.raises(ValueError, match="jobs = 0 must be at least 1"):
        run_all([], ".", jobs=0)
    with pytest.raises(ValueError, match="seeds = 0 must be at least 1"):
        seeded(Run(UNIFORM, scenario=short()), 0)
