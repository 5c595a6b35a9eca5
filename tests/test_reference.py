"""Hand-computed cases of the reference: every expected number can be followed on paper."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.reference import Decision, Requests, Result, System, View, simulate

# One root, two cells, one server each. Work is 1 s a token, and every time below is a binary
# fraction, so sums are exact: leaf time = arrival + 0.5 + 1 in cell 0, arrival + 0.5 + 2 in cell 1.
TWO_CELLS = System(
    tau_s=np.array([[1.0, 2.0]]),
    prefill_s_per_token=np.array([1.0, 1.0]),
    decode_s_per_token=np.array([1.0, 1.0]),
    live_servers=(((0.0, 1),), ((0.0, 1),)),
    decode_slots=8,
    queue_limit=32,
    router_delay_s=0.5,
    probe_interval_s=1.0,
    control_interval_s=32.0,
)


def _requests(
    arrival_s: list[float],
    prompt: list[int] | int = 1,
    output: list[int] | int = 1,
    *,
    u_route: list[float] | float = 0.0,
    u_leaf: list[float] | float = 0.0,
    root: list[int] | int = 0,
) -> Requests:
    def column(values: Any, dtype: type) -> Any:
        return np.broadcast_to(np.asarray(values, dtype), (len(arrival_s),))

    return Requests(
        root=column(root, np.int64),
        arrival_s=column(arrival_s, np.float64),
        prompt_tokens=column(prompt, np.int64),
        output_tokens=column(output, np.int64),
        u_route=column(u_route, np.float64),
        u_leaf=column(u_leaf, np.float64),
    )


def _routing(*rows: list[float], mode: Any = "sample") -> Decision:
    return Decision(mode, routing=np.array(rows))


def _score(base: list[float], slope: list[float]) -> Decision:
    return Decision("score", base=np.array([base]), slope=np.array([slope]))


def _run(system: System, requests: Requests, *decisions: Decision, steps: int = 1) -> Result:
    """Decision k at step k, the last one held to the end."""
    return simulate(system, requests, lambda k, _: decisions[min(k, len(decisions) - 1)], steps)


def _cells(system: System, requests: Requests, *decisions: Decision, steps: int = 1) -> list[int]:
    cells: list[int] = _run(system, requests, *decisions, steps=steps).requests["cell"].tolist()
    return cells


FIRST_CELL = _routing([1.0, 0.0])
THREE_CELLS = replace(
    TWO_CELLS,
    tau_s=np.array([[1.0, 2.0, 3.0]]),
    prefill_s_per_token=np.ones(3),
    decode_s_per_token=np.ones(3),
    live_servers=(((0.0, 1),),) * 3,
)


# -- servers ----------------------------------------------------------------------------------


def test_prefill_is_first_in_first_out() -> None:
    result = _run(TWO_CELLS, _requests([0.0, 1.0, 1.0], [4, 2, 3]), FIRST_CELL)
    assert result.requests["leaf_s"].tolist() == [1.5, 2.5, 2.5]
    assert result.requests["first_token_s"].tolist() == [5.5, 7.5, 10.5]
    assert result.requests["done_s"].tolist() == [6.5, 8.5, 11.5]
    assert result.requests["answer_s"].tolist() == [7.5, 9.5, 12.5]
    assert result.requests["server"].tolist() == [0, 0, 0]


def test_decode_waits_for_the_earliest_free_slot() -> None:
    system = replace(TWO_CELLS, decode_slots=2)
    result = _run(system, _requests([0.0] * 4, 1, [10, 4, 3, 1]), FIRST_CELL)
    assert result.requests["first_token_s"].tolist() == [2.5, 3.5, 4.5, 5.5]
    # Slots run 2.5 to 12.5 and 3.5 to 7.5; the third waits until 7.5, the fourth until 10.5.
    assert result.requests["done_s"].tolist() == [12.5, 7.5, 10.5, 11.5]


def test_a_full_server_rejects_at_once_and_the_error_travels_back() -> None:
    system = replace(TWO_CELLS, queue_limit=2)
    result = _run(system, _requests([0.0, 0.0, 0.0]), FIRST_CELL)
    assert result.requests["error"].tolist() == [False, False, True]
    assert result.requests["server"].tolist() == [0, 0, -1]
    assert result.requests["answer_s"].tolist() == [4.5, 5.5, 2.5]
    assert np.isnan(result.requests["done_s"][2])
    view = result.views[-1]
    assert (view.rejected, view.answered[0, 0], view.errors[0, 0]) == (1, 3, 1)
    assert view.received[0, 0] == 3


def test_a_completion_makes_room_for_an_arrival_at_the_same_instant() -> None:
    system = replace(TWO_CELLS, queue_limit=2)
    # Prefill ends at 2.5 and 3.5, the first request is done at 3.5, where the third arrives.
    result = _run(system, _requests([0.0, 0.0, 2.0]), FIRST_CELL)
    assert not result.requests["error"].any()
    assert result.requests["done_s"].tolist() == [3.5, 4.5, 5.5]


def test_equal_leaf_times_go_by_root_then_by_send_number() -> None:
    system = replace(TWO_CELLS, tau_s=np.array([[1.0, 2.0], [2.0, 1.0]]))
    requests = _requests([1.0, 1.0, 0.0], root=[0, 0, 1])
    result = _run(system, requests, _routing([1.0, 0.0], [1.0, 0.0]))
    assert result.requests["leaf_s"].tolist() == [2.5, 2.5, 2.5]
    assert result.requests["first_token_s"].tolist() == [3.5, 4.5, 5.5]


def test_what_lies_beyond_the_last_interval_stays_unknown() -> None:
    system = replace(TWO_CELLS, control_interval_s=3.0)
    result = _run(system, _requests([0.0, 3.0, 3.5]), FIRST_CELL)
    assert result.requests["first_token_s"].tolist()[0] == 2.5
    assert np.isnan(result.requests["done_s"]).all()
    # An arrival at the end of the interval belongs to it; a later one never gets a cell.
    assert result.requests["cell"].tolist() == [0, 0, -1]
    assert result.views[-1].arrived == 2


# -- leaf router ------------------------------------------------------------------------------


def test_the_leaf_takes_fewer_unfinished_tokens_and_the_first_drawn_on_a_tie() -> None:
    system = replace(TWO_CELLS, live_servers=(((0.0, 3),), ((0.0, 1),)))
    # u = 0.5 of three servers: first = floor(1.5) = 1; the fraction 0.5 of the two others gives
    # floor(1.0) = 1, hence server 2. Unfinished tokens of servers 1 and 2 at each leaf time:
    #   1.5   0 and 0, a tie: server 1 takes 4 + 2
    #   1.5   6 and 0: server 2 takes 1 + 4
    #   2.5   6 and 4, as the prompt left server 2 at this instant: server 2 takes 1 + 1
    #   5.5   2 and 4, as the prompt left server 1 at this instant: server 1
    requests = _requests([0.0, 0.0, 1.0, 4.0], [4, 1, 1, 1], [2, 4, 1, 1], u_leaf=0.5)
    assert _run(system, requests, FIRST_CELL).requests["server"].tolist() == [1, 2, 2, 1]


@pytest.mark.parametrize(
    ("u_leaf", "first", "second"),
    [(0.0, 0, 1), (0.25, 0, 2), (0.375, 1, 0), (0.625, 1, 2), (0.75, 2, 0), (0.875, 2, 1)],
)
def test_one_uniform_draws_two_distinct_servers(u_leaf: float, first: int, second: int) -> None:
    system = replace(TWO_CELLS, live_servers=(((0.0, 3),), ((0.0, 1),)))
    requests = _requests([0.0, 0.0], u_leaf=u_leaf)
    assert _run(system, requests, FIRST_CELL).requests["server"].tolist() == [first, second]


def test_a_full_choice_is_an_error_though_another_server_is_idle() -> None:
    system = replace(TWO_CELLS, live_servers=(((0.0, 3),), ((0.0, 1),)), queue_limit=1)
    result = _run(system, _requests([0.0] * 3, u_leaf=0.0), FIRST_CELL)
    assert result.requests["server"].tolist() == [0, 1, -1]


def test_removed_servers_take_nothing_new_and_finish_theirs() -> None:
    live = (((0.0, 3), (5.5, 1), (7.0, 3)), ((0.0, 1),))
    system = replace(TWO_CELLS, live_servers=live)
    requests = _requests([0.0, 4.0, 5.5], [8, 1, 1], u_leaf=0.5)
    result = _run(system, requests, FIRST_CELL)
    # The change at 5.5 precedes the arrival at 5.5; from 7.0 on server 1 holds 9 tokens yet.
    assert result.requests["server"].tolist() == [1, 0, 2]
    assert result.requests["done_s"].tolist() == [10.5, 7.5, 9.0]


def test_a_cell_without_live_servers_answers_with_an_error() -> None:
    system = replace(TWO_CELLS, live_servers=(((0.0, 1), (1.0, 0)), ((0.0, 1),)))
    result = _run(system, _requests([0.0]), FIRST_CELL)
    assert result.requests["error"].tolist() == [True]
    assert result.requests["answer_s"].tolist() == [2.5]


# -- dispatch ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "u_route", "cell"),
    [
        ([0.25, 0.75, 0.0], 0.2499, 0),
        ([0.25, 0.75, 0.0], 0.25, 1),
        ([0.0, 0.5, 0.5], 0.0, 1),
        ([0.5, 0.0, 0.5], 0.5, 2),
        ([0.5, 0.25, 0.0], 0.9, 1),
    ],
)
def test_sample_takes_the_first_cumulative_sum_above_the_uniform(
    weights: list[float], u_route: float, cell: int
) -> None:
    assert _cells(THREE_CELLS, _requests([0.0], u_route=u_route), _routing(weights)) == [cell]


def test_smooth_interleaves_by_credit() -> None:
    # Credits before each choice, weights (0.5, 0.25, 0.25), u = 0:
    #   (0.5, 0.25, 0.25)   cell 0, pays 1
    #   (0, 0.5, 0.5)       tie of cells 1 and 2: number 0 is cell 1
    #   (0.5, -0.25, 0.75)  cell 2
    #   (1, 0, 0)           cell 0, and the credits are back at zero
    decision = _routing([0.5, 0.25, 0.25], mode="smooth")
    arrivals = [float(k) for k in range(8)]
    assert _cells(THREE_CELLS, _requests(arrivals), decision) == [0, 1, 2, 0] * 2


def test_smooth_breaks_ties_by_the_uniform() -> None:
    decision = _routing([0.5, 0.25, 0.25], mode="smooth")
    requests = _requests([0.0, 1.0, 2.0], u_route=[0.0, 0.5, 0.0])
    assert _cells(THREE_CELLS, requests, decision) == [0, 2, 1]


def test_smooth_credits_survive_decisions_unless_the_weight_is_zero() -> None:
    system = replace(THREE_CELLS, control_interval_s=2.0)
    # After cells 0 and 1 the credits are (0, -0.5, 0.5). The second decision clears cell 2:
    #   (0.5, 0, 0) cell 0; (0, 0.5, 0) cell 1, leaving (0, -0.5, 0).
    # The third one adds (0.25, 0.25, 0.5):
    #   (0.25, -0.25, 0.5) cell 2; (0.5, 0, 0) cell 0.
    # Had cell 2 kept its 0.5, the last choice were a tie of cells 0 and 2, and u = 0.9 took 2.
    decisions = [
        _routing(weights, mode="smooth")
        for weights in ([0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5])
    ]
    requests = _requests([0.5, 1.0, 2.5, 3.0, 4.5, 5.0], u_route=[0.0] * 5 + [0.9])
    assert _cells(system, requests, *decisions, steps=3) == [0, 1, 0, 1, 2, 0]


def test_score_adds_the_slope_of_own_requests_since_the_decision() -> None:
    # Costs (0, 1.5), (1, 1.5), (2, 1.5), (2, 2) tie, then (3, 2) or (2, 2.5).
    requests = _requests([0.0, 1.0, 2.0, 3.0, 4.0], u_route=[0.0, 0.0, 0.0, 0.5, 0.0])
    assert _cells(TWO_CELLS, requests, _score([0.0, 1.5], [1.0, 0.5])) == [0, 0, 1, 1, 0]
    requests = replace(requests, u_route=np.array([0.0, 0.0, 0.0, 0.49, 0.0]))
    assert _cells(TWO_CELLS, requests, _score([0.0, 1.5], [1.0, 0.5])) == [0, 0, 1, 0, 1]


def test_score_counters_start_again_at_each_decision() -> None:
    system = replace(TWO_CELLS, control_interval_s=2.0)
    decision = _score([0.0, 0.5], [1.0, 1.0])
    # The request at 2.0 still belongs to the first interval: costs (0, 0.5), (1, 0.5), (1, 1.5).
    requests = _requests([0.0, 1.0, 2.0, 2.5])
    assert _cells(system, requests, decision, steps=2) == [0, 1, 0, 0]


def test_score_looks_at_arcs_only() -> None:
    system = replace(TWO_CELLS, tau_s=np.array([[1.0, np.nan]]))
    assert _cells(system, _requests([0.0]), _score([5.0, -9.0], [0.0, 0.0])) == [0]


def test_a_decision_acts_after_the_arrivals_of_its_instant() -> None:
    system = replace(TWO_CELLS, control_interval_s=2.0)
    requests = _requests([0.0, 2.0, 2.25])
    assert _cells(system, requests, FIRST_CELL, _routing([0.0, 1.0]), steps=2) == [0, 0, 1]


def test_a_decision_off_the_arcs_is_an_error() -> None:
    system = replace(TWO_CELLS, tau_s=np.array([[1.0, np.nan]]))
    with pytest.raises(ValueError, match="on arcs only"):
        _run(system, _requests([0.0]), _routing([0.5, 0.5]))


# -- probes and books -------------------------------------------------------------------------


def _views(system: System, requests: Requests, steps: int) -> list[View]:
    return _run(system, requests, FIRST_CELL, steps=steps).views


def test_a_probe_is_held_one_network_latency_after_it_left() -> None:
    system = replace(TWO_CELLS, control_interval_s=0.5)
    views = _views(system, _requests([0.0, 0.5]), 9)
    # Leaf times 1.5 and 2.0, prefill ends at 2.5 and 3.5, done 3.5 and 4.5. Cell 0 reports RIF 0,
    # 0, 2, 2 at 0, 1, 2, 3 (the arrival at 2.0 precedes the probe), seen 1 s later.
    assert [view.emitted_s[0, 0] for view in views] == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert [view.rif[0, 0] for view in views] == [0, 0, 0, 0, 0, 0, 2, 2, 2, 2]
    assert [view.received[0, 0] for view in views] == [0, 0, 0, 0, 0, 0, 2, 2, 2, 2]
    assert [view.emitted_s[0, 1] for view in views] == [0, 0, 0, 0, 0, 0, 1, 1, 2, 2]
    assert [view.sent[0, 0] for view in views] == [0, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    assert [view.answered[0, 0] for view in views] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_before_the_first_probe_the_cell_looks_empty() -> None:
    # The probe of clock 0 would say one server; it leaves after that instant's arrivals.
    system = replace(
        TWO_CELLS,
        tau_s=np.array([[0.0, 2.0]]),
        router_delay_s=0.0,
        control_interval_s=0.5,
        live_servers=(((0.0, 2), (0.25, 1)), ((0.0, 3),)),
    )
    views = _views(system, _requests([0.0]), 2)
    assert [view.rif[0, 0] for view in views] == [0, 1, 1]
    assert [view.servers[0].tolist() for view in views] == [[2, 3], [2, 3], [1, 3]]


def test_probe_visibility_is_decided_by_the_float_sum() -> None:
    # 1 * 0.1 + 0.2 exceeds 1 * 0.3 in doubles; 1 * 0.1 + 0.7 is below 8 * 0.1.
    late = replace(
        TWO_CELLS,
        tau_s=np.array([[0.2, 0.2]]),
        probe_interval_s=0.1,
        control_interval_s=0.3,
    )
    early = replace(late, tau_s=np.array([[0.7, 0.7]]), control_interval_s=0.1)
    assert _views(late, _requests([]), 1)[1].emitted_s[0, 0] == 0.0
    assert _views(early, _requests([]), 8)[8].emitted_s[0, 0] == 0.1


def test_the_error_rate_is_an_exponential_mean_of_outcomes() -> None:
    system = replace(TWO_CELLS, queue_limit=1, tau_s=np.array([[1.0, 2.0]]), control_interval_s=1.0)
    views = _views(system, _requests([0.0, 0.0]), 5)
    # Error at 1.5 after 1.5 s without events, completion at 3.5; probes at 2, 3, 4.
    after_error = 1.0 - math.exp(-1.5 / 5.0)
    held = [view.error_rate[0, 0] for view in views]
    assert held[:3] == [0.0, 0.0, 0.0]
    expected = [after_error, after_error, after_error * math.exp(-2.0 / 5.0)]
    assert held[3:] == pytest.approx(expected, rel=1e-14)
    assert [view.rejected for view in views] == [0, 0, 1, 0, 0, 0]


def test_the_integral_of_requests_in_system_is_the_sum_of_latencies() -> None:
    system = replace(TWO_CELLS, queue_limit=2, control_interval_s=4.0)
    result = _run(system, _requests([0.0, 0.0, 0.0]), FIRST_CELL, steps=2)
    # Answers at 2.5 (the error), 4.5 and 5.5: 2.5 + 4 + 4 in the first interval, 0.5 + 1.5 after.
    assert [view.in_system_integral for view in result.views] == [0.0, 10.5, 2.0]


def test_views_are_zero_off_the_arcs() -> None:
    system = replace(TWO_CELLS, tau_s=np.array([[1.0, np.nan]]), control_interval_s=8.0)
    view = _views(system, _requests([0.0]), 1)[-1]
    assert view.servers.tolist() == [[1, 0]]
    assert view.emitted_s.tolist() == [[7.0, 0.0]]


def test_decisions_see_the_views_up_to_their_instant() -> None:
    seen = []

    def decide(step: int, views: list[View]) -> Decision:
        seen.append((step, [view.time_s for view in views]))
        return FIRST_CELL

    simulate(replace(TWO_CELLS, control_interval_s=0.25), _requests([]), decide, 3)
    assert seen == [(0, [0.0]), (1, [0.0, 0.25]), (2, [0.0, 0.25, 0.5])]


def test_unsorted_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="sorted by root"):
        _run(TWO_CELLS, _requests([1.0, 0.0]), FIRST_CELL)
