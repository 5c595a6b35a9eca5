"""The autoscaler's rules, by hand, on systems whose requests are written down."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from dlb_gym.autoscaler import Scaler
from dlb_gym.calibration import latency_parameters
from dlb_gym.episodes import FixedScenarios
from dlb_gym.latency_model import LatencyModel
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.simulator import Simulator
from dlb_gym.task import Task
from tests.mechanisms import scenario_with
from tests.scripted import Played, assert_balanced, system

# One server serves 1 request/s: requests of (500, 2) take 0.5 s of prefill and 0.02 s of decode,
# and the scenario's mean ones are made as long as the slower stage needs for 1/s.
MEAN = {
    "prompt": {"loc_tokens": 20, "shape": 1.5, "mean_tokens": 1000.0},
    "output": {"loc_tokens": 10, "shape": 2.0, "mean_tokens": 20.0},
}


def scaled(servers: tuple[int, ...] = (4,), horizon_s: float = 30.0, **rule: Any) -> Any:
    """Cells of servers of 1 request/s under an autoscaler that looks every second."""
    return system(
        servers,
        tokens=MEAN,
        horizon_s=horizon_s,
        autoscaler={"interval_s": 1.0, "delay_s": 2.0} | rule,
    )


def test_shares_of_servers_are_whole_where_arithmetic_says_so() -> None:
    """45 x 1.4 = 63 and 25 x 0.28 = 7, which floats miss by their last digit."""
    assert Scaler(scaled((45,), extra_servers=0.4)).most_servers == 63
    assert Scaler(scaled((25,), least_share=0.28))._least.tolist() == [7]


def steady(rps: int, seconds: int, first_s: float = 0.0) -> list[tuple[float, int, int]]:
    """Requests of a second each at equal distances: `rps` reach the leaf in every second."""
    return [(first_s + (k + 0.5) / rps, 500, 2) for k in range(rps * seconds)]


def live_at(played: Played, times_s: list[float]) -> list[list[int]]:
    """Live servers of every cell at the decisions of these instants."""
    return [played.to(t).simulator.truth().live_servers[0].tolist() for t in times_s]


def test_a_server_here_serves_one_request_a_second() -> None:
    scaler = Scaler(scaled())
    np.testing.assert_allclose(scaler._server_rps, 1.0)


def test_a_scenario_without_an_autoscaler_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"scenario '.+' has no autoscaler; add one"):
        Scaler(system((4,)))


def test_servers_follow_utilisation_after_their_delay() -> None:
    """5 requests/s on 4 servers: U = 1.25, k* = ceil(4 x 1.25 / 0.75) = 7, ordered at 2 s.

    The first comes at 0.25 s, so that 4 come in the first second: k* = ceil(4 / 0.75) = 6.
    """
    played = Played(
        scaled(target_utilisation=0.75, extra_servers=1.0), steady(5, 20, first_s=-0.05)[1:]
    )
    live = [row[0] for row in live_at(played, [1.0, 2.9, 3.5, 4.5, 10.0, 15.0])]
    assert live == [4, 4, 6, 7, 7, 7]


def test_a_release_takes_effect_at_once_and_stops_at_the_least_share() -> None:
    """Nothing comes: k* = 0, but half of the scenario's 5 servers, 3, stay."""
    played = Played(scaled((5,)), [])
    assert live_at(played, [1.0, 1.1, 9.0]) == [[5], [3], [3]]


def test_released_servers_finish_what_they_have() -> None:
    """Three requests of 1.02 s on three servers, of which two go at 1 s: none fails."""
    played = Played(
        scaled((3,), least_share=0.1, target_utilisation=1.0, interval_s=0.5),
        [(0.1, 1000, 2), (0.1, 1000, 2), (0.1, 1000, 2)],
    ).to(8.0)
    log = played.log
    assert len(log["cell"]) == 3
    assert (log["server"] >= 0).all()
    assert played.simulator.truth().live_servers[0, 0] == 1
    played.balance()


def test_the_cap_goes_to_the_largest_relative_want_first() -> None:
    """10 servers, 2 more at most: the cell that wants 4 for 2 comes before the one with 9 for 8."""
    scaler = Scaler(scaled((8, 2), extra_servers=0.2))
    assert scaler._within_limits(np.array([9, 4])).tolist() == [8, 4]
    assert scaler._within_limits(np.array([9, 3])).tolist() == [9, 3]
    assert scaler._within_limits(np.array([20, 2])).tolist() == [10, 2]
    assert scaler._within_limits(np.array([5, 20])).tolist() == [5, 7]


def test_a_cell_may_come_to_have_all_that_the_others_release() -> None:
    """Cap 12; the cell of 2 keeps 1 at least, that of 8 keeps 4: at most 11 and 8."""
    assert Scaler(scaled((8, 2), extra_servers=0.2)).most_servers == 11


def test_orders_under_way_are_cut_back_by_a_release_before_they_arrive() -> None:
    """Load in the first two seconds alone: what was ordered then is released, not served later."""
    rule = {"delay_s": 5.0, "extra_servers": 2.0, "target_utilisation": 0.5, "least_share": 1.0}
    played = Played(scaled((4,), **rule), steady(6, 2))
    live = [row[0] for row in live_at(played, [2.5, 4.5, 6.5, 8.0, 12.0])]
    assert live == [4] * 5


def test_a_burst_is_followed_up_and_down() -> None:
    rule = {"delay_s": 1.0, "extra_servers": 2.0, "target_utilisation": 0.5, "least_share": 0.5}
    played = Played(scaled((4,), **rule), steady(4, 10))
    live = [row[0] for row in live_at(played, [3.5, 9.0, 12.5, 20.0])]
    assert live == [8, 8, 2, 2]


def test_marginal_latency_moves_a_tenth_of_the_cell_at_a_time() -> None:
    """Zero-load time Z = 1 s + 0.2 s here; marginal latency above 1.5 Z adds, below 1.22 Z takes.

    An idle cell of 20 sheds 2 servers an interval down to its least, 10; a flooded one gets 2 more
    an interval.
    """
    rule = {"kind": "marginal_latency", "extra_servers": 1.0, "delay_s": 0.0}
    idle = Played(scaled((20,), **rule), [])
    assert [row[0] for row in live_at(idle, [1.1, 2.1, 3.1, 6.1])] == [18, 16, 14, 10]
    flooded = Played(scaled((20,), **rule), [(0.1 + 1e-4 * k, 500, 2) for k in range(500)])
    assert [row[0] for row in live_at(flooded, [1.1, 2.1, 3.1])] == [22, 24, 26]
    # Where marginal latency is 1.36 Z by the model, between the two, nothing moves.
    scenario = scaled((20,), **rule)
    model = LatencyModel(*latency_parameters(scenario)[0])
    n = optimize.brentq(lambda n: model.at(n).marginal_latency - 1.36 * 1.2, 0.0, 2.0)
    between = Played(scenario, [(0.7 + 1e-4 * k, 500, 2) for k in range(round(20 * n))])
    assert [row[0] for row in live_at(between, [1.1])] == [20]


def test_the_capacity_that_summaries_count_is_that_of_the_servers_that_were_live() -> None:
    """Idle 5 servers of 1 request/s: 5 for the first second, then 3; horizon of 30 s."""
    played = Played(scaled((5,)), []).to(30.0)
    assert played.simulator.live_capacity(0, 30.0) == pytest.approx(5 + 3 * 29)


@pytest.mark.parametrize("kind", ["utilisation", "marginal_latency"])
def test_no_episode_outgrows_its_schedule_even_while_it_drains(kind: str) -> None:
    rule = {"autoscaler.kind": kind, "autoscaler.interval_s": 0.05, "autoscaler.delay_s": 0.0}
    scenario = scenario_with("autoscaler", 3, **rule)
    task = Task(FixedScenarios([scenario]), 1)
    task.reset(seeds=[0])
    for _ in range(scenario.intervals(scenario.horizon_s)):
        task.step_routing(np.where(task.admissible, [1.0, 0.0, 0.0], 0.0))
        live = task.simulator.truth().live_servers[0]
        assert live.sum() <= 18
        assert live.min() >= 2
        assert_balanced(task.simulator)
    task.drain()
    assert task.simulator.books().rif[0] == 0


def test_the_shipped_scenarios_cap_holds() -> None:
    scenario = override(load_scenario("autoscaler"), {"horizon_s": 120.0, "warmup_s": 5.0})
    sim = Simulator(1, 6, 6)
    sim.reset_row(0, scenario, 0, 0)
    sim.set_routing(np.full((1, 6, 6), 1 / 6), np.zeros(1, dtype=np.int64))
    fleet = []
    for step in range(50, 1250, 50):
        sim.advance(np.array([step]))
        fleet.append(int(sim.truth().live_servers.sum()))
    assert max(fleet) <= math.floor(55 * 1.25)
    assert max(fleet) > 55
