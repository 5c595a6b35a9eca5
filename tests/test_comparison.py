from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from baselines.registry import BASELINES
from dlb_gym.comparison import Comparison, mean_of, paired_differences
from dlb_gym.episodes import FixedScenarios
from dlb_gym.evaluation import rollout
from dlb_gym.runs import Run, seeded
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import override
from dlb_gym.task import Task
from tests.scenarios_by_hand import two_cells


def record(policy: str, seed: int, latency_s: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "label": f"{policy} @ 100 ms",
        "policy": policy,
        "scenario": "s",
        "scenario_digest": "d",
        "seed": seed,
        "requests": 100 + seed,
        "latency_mean_s": latency_s,
    } | changes


X = [1.0, 1.3, 0.9, 1.2, 1.6]
Y = [1.1, 1.5, 1.2, 1.2, 1.9]


def compared(reference: str = "base") -> Comparison:
    records = [record("base", k, y) for k, y in enumerate(Y)]
    records += [record("own", k, x) for k, x in reversed(list(enumerate(X)))]
    _, own = paired_differences(records, reference)
    return own


def test_differences_and_ratios_are_those_of_pairs() -> None:
    own = compared()
    assert own.pairs == 5
    assert own.difference is not None
    assert own.difference.value == pytest.approx(-0.9 / 5)
    assert own.ratio is not None
    by_hand = (1 / 1.1 + 1.3 / 1.5 + 0.9 / 1.2 + 1 + 1.6 / 1.9) / 5
    assert own.ratio.value == pytest.approx(by_hand)
    assert own.ratio_of_means is not None
    assert own.ratio_of_means.value == pytest.approx(6.0 / 6.9)


def test_intervals_are_those_of_scipy() -> None:
    own = compared()
    x, y = np.array(X), np.array(Y)
    settings: dict[str, Any] = {"method": "percentile", "n_resamples": 20_000, "rng": 5}
    pairs = {
        "difference": stats.bootstrap((x - y,), np.mean, **settings),
        "ratio": stats.bootstrap((x / y,), np.mean, **settings),
        "ratio_of_means": stats.bootstrap(
            (x, y),
            lambda a, b, axis: a.mean(axis) / b.mean(axis),
            paired=True,
            vectorized=True,
            **settings,
        ),
    }
    for name, expected in pairs.items():
        estimate = getattr(own, name)
        interval = expected.confidence_interval
        assert (estimate.low, estimate.high) == pytest.approx(interval, abs=5e-3)


def test_the_same_records_give_the_same_interval() -> None:
    assert compared() == compared()


def test_the_reference_against_itself_is_one() -> None:
    own, *_ = paired_differences([record("base", k, y) for k, y in enumerate(Y)], "base")
    assert own.ratio == (1.0, 1.0, 1.0)
    assert own.difference == (0.0, 0.0, 0.0)


TEN = [
    override(
        two_cells(),
        {
            "name": f"load-{load}",
            "demand.utilisation": load / 100,
            "warmup_s": 2.0,
            "horizon_s": 6.0,
        },
    )
    for load in range(50, 90, 4)
]


def records_of(name: str, scenario: Scenario, trials: int) -> list[dict[str, Any]]:
    entry = BASELINES[name]
    runs = seeded(Run(entry.policy, dict(entry.keywords), scenario=scenario), trials)
    return [dict(result.record) for result in rollout(runs)]


def test_pairs_tell_policies_apart_that_the_spread_of_seeds_hides() -> None:
    """Fault kind 26: 5 trials x 10 scenarios. Welch's interval holds 0, the pairs' one does not."""
    names = ("random", "disc-gradient-score")
    records = {name: [r for s in TEN for r in records_of(name, s, 5)] for name in names}
    base, own = (np.array([r["latency_mean_s"] for r in records[name]]) for name in names)
    assert base.shape == (50,)
    unpaired = stats.ttest_ind(own, base, equal_var=False).confidence_interval(0.95)
    assert unpaired.low < 0 < unpaired.high
    assert max(base.std(), own.std()) > 2 * abs(np.mean(own - base)), "the spread is the larger"
    _, compared = paired_differences([r for name in names for r in records[name]], "random")
    assert compared.pairs == 50
    assert compared.difference is not None
    assert compared.difference.value == pytest.approx(np.mean(own - base))
    assert compared.difference.low is not None
    assert compared.difference.high is not None
    assert unpaired.low < compared.difference.low < compared.difference.high < 0


def test_all_policies_of_a_scenario_meet_the_same_arrivals_and_other_seeds_others() -> None:
    """Fault kind 26: request by request, under routings that have nothing in common."""
    seen = []
    for seed, cell in ((7, 0), (7, 1), (8, 0)):
        task = Task(FixedScenarios(TEN[:1]), 1, log=True)
        task.reset(seeds=[seed])
        for _ in range(60):
            task.step_routing(np.tile(np.eye(2)[cell], (1, 2, 1)))
        task.drain()
        log = task.simulator.request_log(0)
        order = np.lexsort((log["root"], log["arrival_s"]))
        seen.append(np.column_stack([log[name][order] for name in ("arrival_s", "root")]))
    np.testing.assert_array_equal(seen[0], seen[1])
    assert len(seen[0]) > 300
    assert seen[0].tobytes() != seen[2].tobytes()


def test_two_pairs_have_no_interval() -> None:
    records = [record(p, k, 1.0 + k) for p in ("base", "own") for k in range(2)]
    for row in paired_differences(records, "base"):
        assert row.ratio == (1.0, None, None)


def test_a_run_without_latency_leaves_no_number_and_a_note() -> None:
    records = [record("base", k, y) for k, y in enumerate(Y)]
    records += [record("own", k, None if k == 2 else x) for k, x in enumerate(X)]
    _, own = paired_differences(records, "base")
    assert (own.difference, own.ratio, own.ratio_of_means) == (None, None, None)
    assert own.note == "1 of 5 pairs have no latency_mean_s"
    assert mean_of(records, "own @ 100 ms", "latency_mean_s") is None


def test_other_requests_cannot_be_compared() -> None:
    records = [record("base", 1, 1.0), record("own", 1, 1.0, requests=3)]
    with pytest.raises(
        ValueError, match="policies met 101 and 3 requests; evaluate them anew, together"
    ):
        paired_differences(records, "base")


def test_two_records_of_one_pair_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"^'base @ 100 ms' has two records of scenario '.*', seed 1; give policies",
    ):
        paired_differences([record("base", 1, 1.0), record("base", 1, 1.1)], "base")


def test_an_unknown_reference_or_metric_is_named() -> None:
    with pytest.raises(
        ValueError, match="reference = 'other' names 0 of the policies; choose one of "
    ):
        compared("other")
    with pytest.raises(
        ValueError, match=r"metric = 'speed' is not in the records; see \[.*'latency_mean_s'"
    ):
        paired_differences([record("base", 1, 1.0)], "base", "speed")
