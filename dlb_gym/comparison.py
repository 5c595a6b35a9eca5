"""Records compared: paired by (scenario, seed), with bootstrap intervals.

Two policies that met the same requests share their luck; with values x_k and y_k of pair k,

    mean difference d = mean_k (x_k - y_k)          paired ratio  q = mean_k (x_k / y_k)
    ratio of means  m = mean_k x_k / mean_k y_k.

Intervals are percentile bootstrap: the pairs are drawn with replacement RESAMPLES times from a
fixed seed, and 95 % of the recomputed values lie inside. They speak of other seeds of these
scenarios, and with few pairs they are too short: the number of pairs stands beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Record = Mapping[str, Any]

RESAMPLES = 10_000
LEVEL = 0.95
SEED = 20_260_102
FEWEST_PAIRS = 3
"""No interval is given for fewer: resampling two values says nothing."""


class Estimate(NamedTuple):
    """A value and its 95 % interval; None where there is none."""

    value: float
    low: float | None
    high: float | None


class Comparison(NamedTuple):
    """A policy against the reference.

    Attributes:
        label: The policy.
        pairs: (scenario, seed) pairs that both have.
        difference: Mean difference, in the metric's unit.
        ratio: Mean of the pairs' ratios; None where a reference value is 0.
        ratio_of_means: None where the reference's mean is 0.
        note: Why there is no number, or nothing.
    """

    label: str
    pairs: int
    difference: Estimate | None
    ratio: Estimate | None
    ratio_of_means: Estimate | None
    note: str


def labels(records: Sequence[Record]) -> list[str]:
    """The policies' labels in the order in which they come."""
    return list(dict.fromkeys(str(record["label"]) for record in records))


def paired_differences(
    records: Sequence[Record], reference: str, metric: str = "latency_mean_s"
) -> list[Comparison]:
    """Every policy against the reference, itself included.

    Args:
        records: Of one evaluation; a label has at most one record per (scenario, seed).
        reference: A label, or a policy's name if just one label has it.
        metric: A key of the records.

    Raises:
        ValueError: The reference or metric is unknown, a label has two records of one pair, or the
            policies of a pair did not meet the same requests.
    """
    by_label = _by_label(records)
    base = by_label[_reference_label(records, reference)]
    return [_compare(label, own, base, metric) for label, own in by_label.items()]


def _by_label(records: Sequence[Record]) -> dict[str, dict[tuple[str, int], Record]]:
    found: dict[str, dict[tuple[str, int], Record]] = {}
    requests: dict[tuple[str, int], int] = {}
    for record in records:
        pair = (str(record["scenario_digest"]), int(record["seed"]))
        own = found.setdefault(str(record["label"]), {})
        if pair in own:
            raise ValueError(
                f"{record['label']!r} has two records of scenario {record['scenario']!r}, seed "
                f"{pair[1]}; give policies that differ different labels"
            )
        own[pair] = record
        if requests.setdefault(pair, record["requests"]) != record["requests"]:
            raise ValueError(
                f"scenario {record['scenario']!r}, seed {pair[1]}: policies met "
                f"{requests[pair]} and {record['requests']} requests; evaluate them anew, together"
            )
    return found


def _reference_label(records: Sequence[Record], reference: str) -> str:
    known = labels(records)
    if reference in known:
        return reference
    named = labels([record for record in records if record["policy"] == reference])
    if len(named) != 1:
        raise ValueError(
            f"reference = {reference!r} names {len(named)} of the policies; "
            f"choose one of {', '.join(known)}"
        )
    return named[0]


def _compare(
    label: str,
    own: Mapping[tuple[str, int], Record],
    base: Mapping[tuple[str, int], Record],
    metric: str,
) -> Comparison:
    shared = [pair for pair in own if pair in base]
    for record in (*own.values(), *base.values()):
        if metric not in record:
            raise ValueError(f"metric = {metric!r} is not in the records; see {sorted(record)}")
    values = [(own[pair][metric], base[pair][metric]) for pair in shared]
    empty = sum(None in pair for pair in values)
    if not shared or empty:
        note = f"{empty} of {len(shared)} pairs have no {metric}" if shared else "no shared pair"
        return Comparison(label, len(shared), None, None, None, note)
    x, y = np.array(values, dtype=np.float64).T
    draws = resamples(len(x))
    return Comparison(
        label,
        len(shared),
        _estimate((x - y).mean(), (x - y)[draws].mean(axis=1), len(x)),
        _estimate((x / y).mean(), (x / y)[draws].mean(axis=1), len(x))
        if (y != 0.0).all()
        else None,
        _estimate(x.mean() / y.mean(), x[draws].mean(axis=1) / y[draws].mean(axis=1), len(x))
        if (y != 0.0).all()
        else None,
        "",
    )


def resamples(count: int) -> NDArray[np.int64]:
    """Indices of the bootstrap samples, (RESAMPLES, count), always the same."""
    return np.random.default_rng(SEED).integers(0, count, (RESAMPLES, count))


def _estimate(value: float, resampled: FloatArray, pairs: int) -> Estimate:
    if pairs < FEWEST_PAIRS:
        return Estimate(float(value), None, None)
    tail = (1.0 - LEVEL) / 2.0
    low, high = np.quantile(resampled, [tail, 1.0 - tail])
    return Estimate(float(value), float(low), float(high))


def mean_of(records: Sequence[Record], label: str, metric: str) -> float | None:
    """Mean of a metric over a policy's runs; None if one of them has none."""
    values = [record[metric] for record in records if record["label"] == label]
    if None in values or not values:
        return None
    return float(np.mean(np.array(values, dtype=np.float64)))
