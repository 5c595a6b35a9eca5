"""What late, lost and partial reports cost, and what telling more costs (paper 3.1, 5.1).

Root replicas of a cell take turns at probing and share at the end of a turn, so on average a report
is half a turn older than its journey; a lost report leaves the one before. Left: mean latency
against the turn (no losses), and against the loss (turns of 25 ms): at a loss q a report comes
1 / (1 - q) probe intervals after the last on average, which for intervals of 5 ms is little beside
a journey.

Right: telemetry's messages a request. With R roots, K cells of k servers, L leaf and G root
replicas, a probe interval p, gatherings every s, looks every l and turns of t,

    messages / s = 2 R K / p + K L (L - 1) / s + 2 K L k / l + R (G - 1) / t:

the gatherings grow as the square of the leaf replicas. The paper gives 5 to 200 replicas, about
40 % of the routers' computing for probes and gatherings, and no interval; at 200 replicas nobody
gathers every 10 ms, so the figure has a second line with gatherings that are rarer as L grows.
At 80 % load `global_six` has some 300 requests a second; a production cell that needs 200 replicas
has many more, so read the line's shape, not its height.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.runs import FIRST_HELD_OUT_SEED
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override
from experiments.runner import Measurement, evaluated, line_style, panels, played, use_log

QUESTION = "What do turns, lost reports and more replicas cost?"

POLICIES = ("disc-rif", "disc-gradient", "flow-gradient")
TURNS_S = (0.0, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0)
LOSSES = (0.0, 0.1, 0.3, 0.6, 0.9)
REPLICAS = (5, 10, 20, 50, 100, 200)
FASTEST_S = 0.01
"""Gatherings of five replicas."""


def runs(quick: bool) -> list[Measurement]:
    """Turns, losses and replicas, each by itself."""
    if quick:
        return _sweep(POLICIES, TURNS_S[::2], LOSSES[::2], REPLICAS[::3], 3, 0.1)
    return _sweep(POLICIES, TURNS_S, LOSSES, REPLICAS, 5, 0.02)


def tiny() -> list[Measurement]:
    """One policy, 2 s."""
    return _sweep(("disc-rif",), (0.0, 1.0), (0.0, 0.9), (5, 20), 1, 0.1, 1.0, 1.0)


def _sweep(
    policies: tuple[str, ...],
    turns_s: tuple[float, ...],
    losses: tuple[float, ...],
    replicas: tuple[int, ...],
    seeds: int,
    interval_s: float,
    settle_s: float = 10.0,
    horizon_s: float = 30.0,
) -> list[Measurement]:
    spans = {"control_interval_s": interval_s, "settle_s": settle_s, "horizon_s": horizon_s}
    plain = override(load_scenario("global_six"), spans)

    def case(part: str, value: float, policy: str, **keys: float) -> Measurement:
        scenario = override(plain, {"telemetry": keys})
        return evaluated(policy, scenario, seeds, part=part, value=value)

    def overhead(part: str, count: int, gathering_s: float) -> Measurement:
        keys = {"leaf_replicas": count, "sync_interval_s": gathering_s}
        return Measurement(
            f"{__name__}:messages_a_request",
            override(plain, {"telemetry": keys}),
            columns={"part": part, "value": count, "policy": ""},
        )

    return [
        *(case("turn", s, p, turn_s=s) for s in turns_s for p in policies),
        *(case("loss", q, p, probe_loss=q) for q in losses for p in policies),
        *(overhead("replicas", n, FASTEST_S) for n in replicas),
        *(overhead("rarer", n, _gathering_s(plain, n)) for n in replicas),
    ]


def messages_a_request(scenario: Scenario) -> dict[str, float]:
    """Telemetry's messages over the requests, both from clock 0 to the horizon."""
    simulator = played("capacity", scenario, [FIRST_HELD_OUT_SEED]).simulator
    counts = simulator.counts()
    messages = 0 if counts is None else int(counts.messages[0])
    return {"messages_a_request": messages / int(simulator.books().arrived[0])}


def _gathering_s(scenario: Scenario, replicas: int) -> float:
    """Gatherings rarer in proportion to the replicas, whole probe intervals."""
    reports = round(FASTEST_S * replicas / 5 / scenario.probe_interval_s)
    return float(f"{reports * scenario.probe_interval_s:.9g}")


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds."""
    columns = ["latency_mean_s", "latency_p90_s", "error_rate", "messages_a_request"]
    return records.groupby(["part", "value", "policy"], sort=False)[columns].mean().reset_index()


def figure(table: pd.DataFrame) -> Figure:
    """Latency against the turn and the loss; messages against the replicas."""
    drawn, (turn, loss, messages) = panels(3)
    for panel, part, scale in ((turn, "turn", 1.0), (loss, "loss", 100.0)):
        for policy, own in table[table["part"] == part].groupby("policy", sort=False):
            panel.plot(scale * own["value"], own["latency_mean_s"], **line_style(policy))
    turn.set(title="mean latency, s", xlabel="turn, s")
    loss.set(title="mean latency, s", xlabel="lost reports, %")
    for part, dashes, label in (
        ("replicas", "-", "gathering every 10 ms"),
        ("rarer", "--", "every 2 ms x replicas"),
    ):
        own = table[table["part"] == part]
        messages.plot(own["value"], own["messages_a_request"], dashes, color="black", label=label)
    messages.set(title="messages a request", xlabel="leaf replicas a cell")
    use_log(messages.xaxis)
    use_log(messages.yaxis)
    messages.legend()
    drawn.legend(*turn.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return drawn


def finding(table: pd.DataFrame) -> str:
    """What turns and losses add, and what replicas cost."""
    turns = sorted(set(table.loc[table["part"] == "turn", "value"]))
    changes = [
        *(
            _change(table, "turn", s, f"turns of {s:g} s")
            for s in (turns[len(turns) // 2], turns[-1])
        ),
        _change(table, "loss", max(LOSSES), f"{max(LOSSES):.0%} of the reports lost"),
    ]
    usual, rarer = (table[table["part"] == part] for part in ("replicas", "rarer"))
    (few, *_, many), (*_, rare) = usual["messages_a_request"], rarer["messages_a_request"]
    return (
        f"Mean latency (and errors) with {'; with '.join(changes)}. Messages a request: "
        f"{few:,.0f} with {usual['value'].min():.0f} leaf replicas a cell, {many:,.0f} with "
        f"{usual['value'].max():.0f} ({rare:,.0f} if they gather as much more rarely)."
    )


def _change(table: pd.DataFrame, part: str, value: float, text: str) -> str:
    """Mean latency against that without turns or losses, and the errors."""
    rises = []
    for policy, own in table[table["part"] == part].groupby("policy", sort=False):
        latency_s, errors = (
            own.set_index("value")[key] for key in ("latency_mean_s", "error_rate")
        )
        rise = 100.0 * (latency_s[value] / latency_s[0.0] - 1.0)
        rises.append(f"{policy} {rise:+.0f} % ({100.0 * errors[value]:.1f} %)")
    return f"{text}: {', '.join(rises)}"
