"""The figures of a report. Names from scenarios and policies come in escaped.

Colours follow the entity: a cell has one colour everywhere, a policy has one colour everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from dlb_gym.measurements import bin_edges_s
from dlb_gym.printable import printable

PALETTE = (
    "#2a6fbb", "#d1602b", "#2f9e6e", "#8a5ac2", "#b8860b",
    "#c2477f", "#4b9fb5", "#7a7a7a", "#6b8e23", "#a0522d",
)  # fmt: skip
SHADE = "rgba(200, 120, 60, 0.13)"
MAX_GRID = 12
"""Most roots whose routing is drawn one by one."""


def _colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def _text(name: str) -> str:
    """A name for plotly, which reads texts as HTML but does not know `&quot;`."""
    return escape(printable(name), quote=False)


def _layout(figure: Any, title: str, height: int) -> Any:
    figure.update_layout(
        title={"text": title, "x": 0.0, "xanchor": "left", "font": {"size": 15}},
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 20, "t": 70, "b": 50},
        hovermode="x unified",
    )
    return figure


def means_figure(means_s: Mapping[str, float], bounds_s: Mapping[str, float]) -> Any:
    """Mean latency with errors of every policy, best at the top, and the bounds as lines.

    Args:
        means_s: Label -> mean, in the order of the colours.
        bounds_s: Name -> latency.
    """
    from plotly import graph_objects as go

    ranked = sorted(means_s, key=lambda label: -means_s[label])
    colours = {label: _colour(index) for index, label in enumerate(means_s)}
    figure = go.Figure(
        go.Scatter(
            x=[round(means_s[label], 5) for label in ranked],
            y=[_text(label) for label in ranked],
            mode="markers",
            marker={"color": [colours[label] for label in ranked], "size": 9},
        )
    )
    for name, value_s in bounds_s.items():
        figure.add_vline(
            x=round(value_s, 5), line={"dash": "dash", "width": 1}, annotation_text=_text(name)
        )
    figure.update_xaxes(title="mean latency with errors, s")
    figure.update_yaxes(type="category", automargin=True)
    return _layout(figure, "Policies and bounds", 160 + 22 * len(ranked))


def latency_figure(histograms: Mapping[str, Mapping[int, int]]) -> Any:
    """Share of requests that take longer than t, per policy; both axes logarithmic.

    Args:
        histograms: Label -> bin of `bin_edges_s` -> requests.
    """
    from plotly import graph_objects as go

    edges = bin_edges_s()
    figure = go.Figure()
    for index, (label, histogram) in enumerate(histograms.items()):
        bins = np.array(sorted(histogram), dtype=np.int64)
        if bins.size == 0:
            continue
        counts = np.array([histogram[int(b)] for b in bins])
        left = 1.0 - np.concatenate(([0], np.cumsum(counts)))[:-1] / counts.sum()
        figure.add_scatter(
            x=np.round(edges[bins], 5).tolist(),
            y=np.round(left, 7).tolist(),
            mode="lines",
            line={"color": _colour(index), "width": 2, "shape": "hv"},
            name=_text(label),
        )
    figure.update_xaxes(type="log", title="end-to-end latency, s")
    figure.update_yaxes(type="log", title="share of requests that take longer")
    return _layout(figure, "Latency distribution", 460)


def time_figure(timelines: Mapping[str, Mapping[str, Any]]) -> Any:
    """RIF, utilisation and share of requests by cell over time; a menu chooses the policy.

    Args:
        timelines: Label -> columns of `timeline.Timeline`, all of one scenario.
    """
    from plotly import graph_objects as go
    from plotly.subplots import make_subplots

    panels = (
        ("rif", "RIF"),
        ("utilisation", "utilisation"),
        ("share", "share of all requests"),
    )
    figure = go.Figure(
        make_subplots(
            rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06,
            subplot_titles=[f"{title} by cell" for _, title in panels],
        )
    )  # fmt: skip
    owners: list[str] = []
    for label, columns in timelines.items():
        for row, (name, _) in enumerate(panels, start=1):
            for j, cell in enumerate(columns["cells"]):
                owners.append(label)
                line = _line(columns, [value[j] for value in columns[name]], j, cell, row == 1)
                figure.add_trace(line | {"visible": label == next(iter(timelines))}, row, 1)
    for row in (1, 2, 3):
        _shade(figure, next(iter(timelines.values())), row, 1)
    figure.update_xaxes(title="s since measuring began", row=3, col=1)
    figure.update_yaxes(rangemode="tozero")
    _menu(figure, list(timelines), owners)
    return _layout(figure, "Over time, first seed", 780)


def routing_figure(timelines: Mapping[str, Mapping[str, Any]]) -> Any:
    """Where every root sends its requests over time; a menu chooses the policy."""
    from plotly import graph_objects as go
    from plotly.subplots import make_subplots

    first = next(iter(timelines.values()))
    roots = first["roots"][:MAX_GRID]
    columns_of_grid = min(3, len(roots))
    rows = -(-len(roots) // columns_of_grid)
    figure = go.Figure(
        make_subplots(
            rows=rows, cols=columns_of_grid, shared_xaxes=True, shared_yaxes=True,
            subplot_titles=[f"root {_text(root)}" for root in roots],
        )
    )  # fmt: skip
    owners: list[str] = []
    for label, columns in timelines.items():
        for i in range(len(roots)):
            place = (i // columns_of_grid + 1, i % columns_of_grid + 1)
            for j, cell in enumerate(columns["cells"]):
                owners.append(label)
                shares = [window[i][j] for window in columns["routing"]]
                line = _line(columns, shares, j, cell, i == 0)
                stacked = {
                    "visible": label == next(iter(timelines)),
                    "stackgroup": f"{label} {i}",
                }
                figure.add_trace(line | stacked, *place)
    for i in range(len(roots)):
        _shade(figure, first, i // columns_of_grid + 1, i % columns_of_grid + 1)
    figure.update_yaxes(range=[0.0, 1.0])
    _menu(figure, list(timelines), owners)
    left_out = len(first["roots"]) - len(roots)
    title = "Routing: shares of each root's requests by cell, first seed"
    if left_out > 0:
        title += f" ({left_out} more roots not drawn)"
    return _layout(figure, title, 150 + 230 * rows)


def _line(
    columns: Mapping[str, Any], values: Sequence[float], j: int, cell: str, legend: bool
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "x": columns["time_s"],
        "y": values,
        "mode": "lines",
        "line": {"color": _colour(j), "width": 1.5},
        "name": _text(cell),
        "legendgroup": str(j),
        "showlegend": legend,
    }


def _shade(figure: Any, columns: Mapping[str, Any], row: int, col: int) -> None:
    for disturbance in columns["disturbances"]:
        figure.add_vrect(
            x0=disturbance["start_s"], x1=disturbance["end_s"], row=row, col=col,
            fillcolor=SHADE, line_width=0, layer="below",
            annotation_text=_text(disturbance["kind"]) if row == 1 and col == 1 else None,
            annotation_position="top left",
        )  # fmt: skip


def _menu(figure: Any, labels: list[str], owners: list[str]) -> None:
    buttons = [
        {
            "label": _text(label),
            "method": "update",
            "args": [{"visible": [owner == label for owner in owners]}],
        }
        for label in labels
    ]
    figure.update_layout(
        updatemenus=[
            {"buttons": buttons, "x": 1.0, "xanchor": "right", "y": 1.0, "yanchor": "bottom",
             "pad": {"b": 30}, "showactive": True}
        ]
    )  # fmt: skip


def training_figure(curve: Sequence[tuple[int, float]]) -> Any:
    """Mean reward of an interval over environment steps, each rollout and a running mean."""
    from plotly import graph_objects as go

    steps = [point[0] for point in curve]
    rewards = np.array([point[1] for point in curve])
    window = max(1, len(rewards) // 20)
    total = np.concatenate(([0.0], np.cumsum(rewards)))
    first = np.maximum(np.arange(len(rewards)) + 1 - window, 0)
    last = np.arange(len(rewards)) + 1
    smooth = (total[last] - total[first]) / (last - first)
    figure = go.Figure()
    figure.add_scatter(
        x=steps, y=np.round(rewards, 5).tolist(), mode="lines", name="rollout",
        line={"color": "#b9c9dc", "width": 1},
    )  # fmt: skip
    figure.add_scatter(
        x=steps, y=np.round(smooth, 5).tolist(), mode="lines", name=f"mean of {window}",
        line={"color": PALETTE[0], "width": 2},
    )  # fmt: skip
    figure.update_xaxes(title="environment steps")
    figure.update_yaxes(title="mean reward of an interval")
    return _layout(figure, "Training", 360)
