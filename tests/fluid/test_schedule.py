"""Scenarios as fluids: moving demand and disturbances, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dlb_gym.fluid import Fixed, Flow, FluidModel, FluidSystem
from dlb_gym.rates import one_way_s
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError, load_scenario
from tests.fluid.systems import tensor
from tests.scenarios_by_hand import two_cells

HOME = Fixed(tensor([[1.0, 0.0], [0.0, 1.0]]))
CROSSED = Fixed(tensor([[0.0, 1.0], [1.0, 0.0]]))
RTT = {"network": {"rtt_s": [[0.0, 0.2], [0.2, 0.0]]}}
"""One way takes 0.1 s."""
BRIEF = {"warmup_s": 0.0, "horizon_s": 10.0, "router_delay_s": 0.0}
EAST, WEST = 42.0, 14.0
"""Requests a second: 0.5 of 112, three to one."""
NAMED = {"start": 0.4, "end": 0.6}


def played(scenario: Scenario, dynamics: Fixed = HOME, **start: torch.Tensor) -> Any:
    return FluidModel(scenario).run(dynamics, record_every=1, **start)


def test_a_scenario_brings_its_numbers() -> None:
    system = FluidSystem.from_scenarios([two_cells(router_delay_s=0.002, **RTT)])
    assert system.rates_rps[0].tolist() == pytest.approx([EAST, WEST])
    assert system.one_way_s[0].tolist() == [[0.0, 0.1], [0.1, 0.0]]
    assert system.request_delay_s[0, 0].tolist() == pytest.approx([0.002, 0.102])
    assert system.report_delay_s[0, 0].tolist() == pytest.approx([0.0025, 0.1025])  # half of 5 ms
    assert system.travel_s[0, 0].tolist() == pytest.approx([0.002, 0.202])
    assert system.curves.servers[0].tolist() == [10.0, 4.0]
    # A server does 8 requests a second; calibrated curves come close.
    assert system.curves.capacity_rps[0].numpy() == pytest.approx([80.0, 32.0], rel=0.06)


def test_residency_and_padding_leave_no_arc() -> None:
    small, large = load_scenario("residency"), load_scenario("global_six")
    system = FluidSystem.from_scenarios([small, large])
    arcs = ~np.isnan(one_way_s(small))
    roots, cells = arcs.shape
    assert system.arcs[0, :roots, :cells].tolist() == arcs.tolist()
    assert not system.arcs[0, roots:].any()
    assert not system.arcs[0, :, cells:].any()
    assert (system.rates_rps[0, roots:] == 0.0).all()


def test_warm_up_keeps_the_split_by_capacity() -> None:
    scenario = two_cells(warmup_s=2.0, horizon_s=4.0)
    path = played(scenario, Flow("gradient", 0.5, 0.1))
    split = FluidSystem.from_scenarios([scenario]).capacity_split()
    assert path.time_s[-1].item() == pytest.approx(6.0)
    assert torch.equal(path.routing[199], split)
    assert not torch.equal(path.routing[200], split)


def test_a_burst_adds_its_requests_while_it_lasts() -> None:
    """From half of 112 to 0.9: 44.8 more a second at west, from 4 s to 6 s."""
    burst = {"kind": "burst", "root": "west", "to_utilisation": 0.9, **NAMED}
    path = played(two_cells(disturbances=[burst], **BRIEF))
    offered = path.offered_rps[:, 0].numpy()
    assert offered[:400] == pytest.approx(56.0)
    assert offered[400:600] == pytest.approx(56.0 + 44.8)
    assert offered[600:] == pytest.approx(56.0)


def test_demand_follows_its_profile() -> None:
    """Pulses of 0.1 s at every second hold 60 %: 10 x 0.6 + 0.4 times the mean, then 0.4 times."""
    profile = {
        "synchronised_fraction": 0.6, "synchronised_period_s": 1.0, "synchronised_width_s": 0.1,
    }  # fmt: skip
    path = played(two_cells(demand={"utilisation": 0.5, "profile": profile}, **BRIEF))
    offered = path.offered_rps[:, 0].numpy().reshape(10, 100)
    assert offered[:, :10] == pytest.approx(56.0 * 6.4)
    assert offered[:, 10:] == pytest.approx(56.0 * 0.4)


def test_an_outage_leaves_fewer_servers() -> None:
    """Of west's four one is left: rates at equal RIF are those of one server."""
    outage = {"kind": "outage", "cells": ["west"], "servers_left": 1, **NAMED}
    model = FluidModel(two_cells(disturbances=[outage], **BRIEF))
    path = model.run(HOME, record_every=1)
    rif = path.rif[:, 0, 1].numpy()
    one = model.system.curves.model
    for step, servers in ((399, 4.0), (400, 1.0), (599, 1.0), (600, 4.0)):
        n = tensor([[1.0, rif[step] / servers]])
        rate = servers * one.at(n).rate[0, 1].item()
        change = (rif[step + 1] - rif[step]) / 0.01
        assert change == pytest.approx(WEST - rate, abs=0.1)
    assert rif[600] > 1.5 * rif[400]


def test_a_slow_cell_serves_at_its_speed() -> None:
    """What it serves at once falls to half, at the same requests in flight."""
    slow = {"kind": "slow_cell", "cells": ["east"], "speed": 0.5, **NAMED}
    path = played(two_cells(disturbances=[slow], **BRIEF))
    rif = path.rif[:, 0, 0].numpy()
    before = EAST - (rif[400] - rif[399]) / 0.01
    after = EAST - (rif[401] - rif[400]) / 0.01
    assert after == pytest.approx(0.5 * before, rel=0.01)


def test_a_black_hole_fails_its_share() -> None:
    hole = {"kind": "black_hole", "cells": ["east"], "error_fraction": 0.25, **NAMED}
    path = played(two_cells(disturbances=[hole], **BRIEF))
    lost = path.lost_rps[:, 0].numpy()
    assert lost[:400] == pytest.approx(0.0)
    assert lost[400:600] == pytest.approx(0.25 * EAST)
    assert lost[600:] == pytest.approx(0.0)


def test_a_crash_takes_what_the_servers_had() -> None:
    """Five of ten servers crash: half of the requests in flight are gone, the other half stays."""
    crash = {"kind": "server_crash", "cells": ["east"], "servers": 5, **NAMED}
    path = played(two_cells(disturbances=[crash], **BRIEF, **RTT))
    rif = path.rif[:, 0, 0].numpy()
    lost = 0.01 * path.lost_rps[400, 0].item()
    assert lost == pytest.approx(rif[400], rel=1e-12)
    assert lost == pytest.approx(0.5 * rif[399], rel=0.01)
    total = 0.01 * (path.offered_rps - path.served_rps.sum(dim=2) - path.lost_rps).sum().item()
    assert total == pytest.approx(path.rif[-1].sum().item(), rel=1e-9)


def test_a_latency_shift_delays_what_departs_in_it() -> None:
    """0.5 s more from 4 s to 6 s: nothing reaches the cells from 4.1 to 4.6, twice from 6.1 on."""
    shift = {"kind": "latency_shift", "cells": ["east"], "extra_s": 0.5, "roots": ["west"], **NAMED}
    scenario = two_cells(disturbances=[shift], **BRIEF, **RTT)
    path = played(scenario, CROSSED)
    system = FluidSystem.from_scenarios([scenario])
    rif = path.rif[:, 0, 0]
    served = system.curves.at(path.rif[:, 0]).rate_rps[:, 0]
    inflow = ((rif[1:] - rif[:-1]) / 0.01 + 0.5 * (served[1:] + served[:-1])).numpy()
    assert inflow[20:410] == pytest.approx(WEST, rel=1e-3)
    assert inflow[410:460] == pytest.approx(0.0, abs=0.02)
    assert inflow[461:609] == pytest.approx(WEST, rel=1e-3)
    assert inflow[611:659] == pytest.approx(2 * WEST, rel=1e-3)
    assert inflow[661:] == pytest.approx(WEST, rel=1e-3)
    assert path.lost_rps.sum() == 0.0


def test_a_partition_loses_what_is_sent_through_it() -> None:
    """Also what left 0.1 s before and would arrive in it."""
    cut = {"kind": "partition", "cells": ["east"], "roots": ["west"], **NAMED}
    path = played(two_cells(disturbances=[cut], **BRIEF, **RTT), CROSSED)
    lost = path.lost_rps[:, 0].numpy()
    assert lost[:389] == pytest.approx(0.0)
    assert lost[391:599] == pytest.approx(WEST)
    assert lost[601:] == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("kind", "ages_s"),
    [
        # Sent from 4 s on, reports take 0.6 s: the one of 4 s is held until 4.6 s; those sent
        # after 6 s overtake.
        ("latency_shift", {3.9: 0.1, 4.05: 0.1, 4.35: 0.35, 4.6: 0.6, 6.05: 0.6, 6.2: 0.1}),
        # The last report that passes left at 3.9 s; the next one leaves at 6 s.
        ("partition", {3.9: 0.1, 4.35: 0.45, 6.05: 2.15, 6.2: 0.1}),
    ],
)
def test_reports_keep_their_age_through_windows(kind: str, ages_s: dict[float, float]) -> None:
    """A dynamics that records what it sees; east tells the time, which is n steps."""
    what = {"kind": kind, "cells": ["east"], "roots": ["west"], **NAMED}
    if kind == "latency_shift":
        what["extra_s"] = 0.5
    seen_s: list[float] = []

    class Clock(Fixed):
        def reports(self, system: FluidSystem, point: Any) -> torch.Tensor:
            self.__dict__["told"] = self.__dict__.get("told", -1) + 1
            return torch.full((1, 2, 1), 0.01 * self.__dict__["told"], dtype=torch.float64)

        def step(self, system: Any, routing: Any, seen: torch.Tensor, duration_s: float) -> Any:
            seen_s.append(seen[0, 1, 0, 0].item())
            return super().step(system, routing, seen, duration_s)

    scenario = two_cells(disturbances=[what], probe_interval_s=1e-3, **BRIEF, **RTT)
    FluidModel(scenario).run(Clock(HOME.routing))
    for time_s, age_s in ages_s.items():
        step = round(time_s / 0.01)
        assert time_s - seen_s[step] == pytest.approx(age_s, abs=0.011), time_s


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"autoscaler": {}},
            "autoscaler is given, and the fluid model does not follow it; leave it out, or",
        ),
        (
            {"demand": {"utilisation": 0.5, "sessions": {}}},
            "demand.sessions is given, and the fluid model does not",
        ),
        (
            {"disturbances": [{"kind": "root_crash", "roots": ["east"]}], "telemetry": {}},
            r"disturbances.0.kind = 'root_crash' concerns replicas, which the fluid model does",
        ),
    ],
)
def test_what_a_fluid_does_not_follow_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        FluidModel(two_cells(**change))


def test_rows_must_warm_up_together() -> None:
    with pytest.raises(ValueError, match=r"need one warmup_s, and there are 2: \[1.0, 2.0\]"):
        FluidModel([two_cells(warmup_s=1.0), two_cells(warmup_s=2.0)])


def test_changes_in_one_step_all_count() -> None:
    """Nine of ten servers crash for 3 ms, within a step: nine tenths of the requests are gone."""
    crash = {"kind": "server_crash", "cells": ["east"], "servers": 9, "start": 0.4, "end": 0.4003}
    path = played(two_cells(disturbances=[crash], **BRIEF, **RTT))
    assert path.rif[400, 0, 0].item() == pytest.approx(0.1 * path.rif[399, 0, 0].item(), rel=0.01)


def test_latencies_count_what_disturbances_do() -> None:
    """A shift of 0.5 s each way on a quarter of the requests; a black hole that answers half."""
    whole = {"start": 0.0, "end": 1.0}
    shift = {"kind": "latency_shift", "cells": ["east"], "extra_s": 0.5, "roots": ["west"], **whole}
    calm, shifted = (
        played(two_cells(disturbances=each, **BRIEF, **RTT), CROSSED).latency_s(4.0).item()
        for each in ([], [shift])
    )
    assert shifted - calm == pytest.approx(0.25 * 2 * 0.5, rel=0.05)
    hole = {"kind": "black_hole", "cells": ["east"], "error_fraction": 0.5, **whole}
    path = played(two_cells(disturbances=[hole], **BRIEF, **RTT))
    answered = path.offered_rps - path.lost_rps
    assert answered[-1].item() == pytest.approx(0.5 * EAST + WEST)
    inside = path.mean_rif[-1, 0].sum().item()
    assert path.in_system[-1].item() == pytest.approx(inside)  # nobody travels
    latency_s = inside / (0.5 * EAST + WEST)
    assert path.latency_s(9.9).item() == pytest.approx(latency_s, rel=1e-2)
