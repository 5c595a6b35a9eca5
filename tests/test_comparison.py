from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from dlb_gym.comparison import Comparison, mean_of, paired_differences


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
    with pytest.raises(ValueError, match="met 101 and 3 requests"):
        paired_differences(records, "base")


def test_two_records_of_one_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="two records"):
        paired_differences([record("base", 1, 1.0), record("base", 1, 1.1)], "base")


def test_an_unknown_reference_or_metric_is_named() -> None:
    with pytest.raises(ValueError, match="reference = 'other'"):
        compared("other")
    with pytest.raises(ValueError, match="metric = 'speed'"):
        paired_differences([record("base", 1, 1.0)], "base", "speed")
