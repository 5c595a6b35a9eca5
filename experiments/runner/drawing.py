"""Figures: one look for all of them, and the same bytes for the same table."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.0,
    "font.size": 9.0,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",  # texts stay texts: small files that can be searched
    "text.parse_math": False,  # a $ in a name is a $
}
COST_COLOURS = {"rif": "#d1602b", "latency": "#2f9e6e", "gradient": "#2a6fbb"}
PLAIN_COLOURS = {"random": "#7a7a7a", "capacity": "#b8860b", "mnlb": "#222222"}
MECHANISMS = {"disc": ("--", "s"), "flow": ("-", "o")}
PANEL_INCHES = (4.2, 3.3)


def panels(count: int = 1, **subplots: Any) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels side by side, and their axes.

    Args:
        count: At least 1.
        **subplots: As `Figure.subplots` takes them, such as `sharey=True`.
    """
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False, **subplots)[0])


def use_log(axis: XAxis | YAxis) -> None:
    """A logarithmic scale whose ticks are plain numbers."""
    axis.axes.set(**{"xscale" if isinstance(axis, XAxis) else "yscale": "log"})
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def line_style(policy: str) -> dict[str, Any]:
    """Colour, dashes and marker of a policy, the same in every figure; label: its name.

    Colours tell costs, dashes mechanisms. Others than the baselines get the next free colour.
    """
    mechanism, _, cost = policy.partition("-")
    dashes, marker = MECHANISMS.get(mechanism, (":", "^"))
    style = {"label": policy, "linestyle": dashes, "marker": marker}
    if cost in COST_COLOURS and mechanism in MECHANISMS:
        style["color"] = COST_COLOURS[cost]
    elif policy in PLAIN_COLOURS:
        style["color"] = PLAIN_COLOURS[policy]
    return style


def svg(figure: Callable[[pd.DataFrame], Figure], table: pd.DataFrame, name: str) -> str:
    """The figure of a table as SVG text that holds no date and no random name."""
    buffer = io.StringIO()
    settings: Any = STYLE | {"svg.hashsalt": name}
    with mpl.rc_context(settings):
        figure(table).savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
