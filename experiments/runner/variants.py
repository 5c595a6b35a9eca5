"""Policies on variants of a scenario: sweep, table and figure of experiments that compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.scenario import Scenario
from experiments.runner.drawing import line_style, panels
from experiments.runner.measurement import Measurement
from experiments.runner.playing import evaluated


def variants(
    scenarios: Mapping[str, Scenario], policies: Sequence[str], seeds: int
) -> list[Measurement]:
    """Every policy on every variant, with a column `variant`."""
    return [
        evaluated(policy, scenario, seeds, variant=name)
        for name, scenario in scenarios.items()
        for policy in policies
    ]


def by_variant(records: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Means over seeds of the metrics, and the standard error of the first, a row a policy."""
    groups = records.groupby(["variant", "policy"], sort=False)
    means = groups[list(metrics)].mean()
    means.insert(1, f"{metrics[0]}_sem", groups[metrics[0]].sem())
    return means.reset_index()


def value(table: pd.DataFrame, variant: str, policy: str, metric: str) -> float:
    """One number of a table by variant and policy."""
    chosen = table[(table["variant"] == variant) & (table["policy"] == policy)]
    return float(chosen[metric].iloc[0])


def side_by_side(table: pd.DataFrame, titles: Mapping[str, str]) -> Figure:
    """A panel a metric, variants along the axis, a line a policy.

    Args:
        table: As `by_variant` makes it.
        titles: Metrics and what they are called; metrics that end in `rate` are shown in %.
    """
    drawn, axes = panels(len(titles))
    names = list(dict.fromkeys(table["variant"]))
    for axis, (metric, title) in zip(axes, titles.items(), strict=True):
        for policy, own in table.groupby("policy", sort=False):
            places = [names.index(name) for name in own["variant"]]
            scale = 100.0 if metric.endswith("rate") else 1.0
            axis.plot(places, scale * own[metric], **line_style(policy))
        axis.set(title=title, xticks=range(len(names)))
        axis.set_xticklabels(names, rotation=30, ha="right", fontsize=7)
    handles, labels = axes[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=4)
    return drawn
