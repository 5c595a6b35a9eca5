"""Faults against completion times, error counts and reports worked out by hand.

All systems are `scripted`: prefill 1 ms and decode 10 ms a token, one way 0.05 s, decisions every
0.1 s. A request (100, 50) that reaches an idle server at t has its first token at t + 0.1 and is
done at t + 0.6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dlb_gym.engine import extras
from dlb_gym.evaluation import rollout
from dlb_gym.runs import Run
from dlb_gym.scenario_source import ScenarioError, load_scenario, override
from dlb_gym.simulator import Simulator
from tests.scripted import STEP_S, TAU_S, Played, assert_balanced, system

KINDS = ("full", "black_hole", "crashed", "gave_up", "unreachable", "root_crashed")
REPLICAS = {"turn_s": 0.0, "sync_interval_s": 0.0, "server_probe_interval_s": 0.0}


def fault(kind: str, start_s: float, end_s: float, **keys: Any) -> dict[str, Any]:
    """A disturbance of a scripted system, whose horizon is 10 s."""
    return {"kind": kind, "start": start_s / 10.0, "end": end_s / 10.0, **keys}


def in_cell(kind: str, start_s: float, end_s: float, **keys: Any) -> dict[str, Any]:
    return fault(kind, start_s, end_s, cells=["cell-0"], **keys)


def errors(played: Played) -> dict[str, int]:
    """Kinds of errors that there were."""
    return {kind: count for kind, count in zip(KINDS, played.errors(), strict=True) if count}


# Slow cell.


def test_a_request_in_service_takes_the_rest_of_its_time_at_the_cells_new_speed() -> None:
    slow = in_cell("slow_cell", 1.0, 2.0, speed=0.5)
    requests = [(0.75, 100, 50), (0.9, 100, 10), (1.45, 100, 10), (1.9, 100, 20)]
    log = Played(system(disturbances=[slow]), *[requests]).to(5.0).log
    # At the leaf at 0.8: first token 0.9; at 1.0 there are 0.4 s left, which take 0.8: 1.8.
    # At the leaf at 0.95: first token at 1.05, so 0.05 s are left at 1.0, which take 0.1: 1.1; then
    # 0.1 s of decode takes 0.2.
    # At the leaf at 1.5, while it is slow: prefill 0.2, decode 0.2.
    # At the leaf at 1.95: 0.05 s at half the speed do 0.025 s of prefill; 0.075 are left at 2.0.
    assert log["first_token_s"] == pytest.approx([0.9, 1.1, 1.7, 2.075])
    assert log["done_s"] == pytest.approx([1.8, 1.3, 1.9, 2.275])


def test_who_waits_at_a_slow_cell_starts_when_those_before_are_through() -> None:
    slow = in_cell("slow_cell", 1.0, 9.0, speed=0.25)
    requests = [(0.85, 100, 1), (0.85, 100, 1), (0.85, 100, 1), (1.05, 100, 1)]
    log = Played(system(disturbances=[slow]), requests).to(5.0).log
    # Prefills would end at 1.0, 1.1 and 1.2; what remains at 1.0 takes four times as long, and who
    # comes at 1.1 starts when that is done.
    assert log["first_token_s"] == pytest.approx([1.0, 1.4, 1.8, 2.2])
    assert log["done_s"] == pytest.approx([1.04, 1.44, 1.84, 2.24])


# Server crash.


def test_a_crash_fails_what_its_servers_had_not_finished_at_that_instant() -> None:
    crash = in_cell("server_crash", 1.0, 2.0, servers=1)
    # u_leaf = 0.25 draws server 0 first and server 1 second; ties go to the first, so requests
    # alternate. Requests 0, 2, 4 go to server 0, 1, 3, 5 to server 1.
    requests = [(0.15 + 0.1 * k, 20, 60) for k in range(6)]
    played = Played(system([2], disturbances=[crash]), requests)
    played.to(1.0)
    log = played.to(6.0).log
    server = np.array([0, 1, 0, 1, 0, 1])
    done_s = 0.2 + 0.1 * np.arange(6) + 0.62  # 0.82, ..., 1.32
    lost = (server == 1) & (done_s >= 1.0)
    assert log["server"].tolist() == np.where(lost, -1, server).tolist()
    assert log["done_s"] == pytest.approx(np.where(lost, 1.0, done_s))
    assert log["answer_s"] == pytest.approx(np.where(lost, 1.0, done_s) + TAU_S)
    assert errors(played) == {"crashed": lost.sum()}


def test_what_would_be_done_at_the_instant_of_a_crash_is_lost() -> None:
    """Both are at their leaf at 0.5 s and take 0.5 s, exactly; the second is on the server lost."""
    crash = in_cell("server_crash", 1.0, 2.0, servers=1)
    requests = [(0.4375, 0, 50), (0.4375, 0, 50)]
    played = Played(system([2], tau_s=0.0625, disturbances=[crash]), requests).to(2.0)
    assert played.log["done_s"].tolist() == [1.0, 1.0]
    assert sorted(played.log["server"]) == [-1, 0]
    assert errors(played) == {"crashed": 1}


def test_the_books_and_the_load_of_a_crashed_server_are_empty() -> None:
    crash = in_cell("server_crash", 1.0, 2.0, servers=1)
    requests = [(0.05 + 0.05 * k, 20, 200) for k in range(14)]
    played = Played(system([2], disturbances=[crash]), requests)
    before = played.to(1.0 - STEP_S).simulator.truth()
    assert before.rif[0, 0] == 14
    after = played.to(1.0).simulator.truth()
    assert (after.rif[0, 0], after.live_servers[0, 0], after.rejected[0]) == (7, 1, 7)
    played.balance()
    assert played.to(1.1).simulator.books().errors[0] == 7
    # It serves again from 2 s on, with nothing before the new ones.
    back = Played(system([2], disturbances=[crash]), [*requests, (2.0, 100, 50)]).to(5.0).log
    assert back["server"][-1] == 1
    assert back["done_s"][-1] == pytest.approx(2.05 + 0.6)


# Partition.


def test_whatever_travels_while_the_arc_is_cut_becomes_an_error_when_it_would_have_come() -> None:
    cut = in_cell("partition", 1.0, 2.0, roots=["root-0"])
    requests = [
        (0.2, 100, 50),  # answered at 0.9
        (0.33, 100, 50),  # done at 0.98; the answer would come at 1.03: cut
        (0.97, 100, 50),  # at the leaf at 1.02: cut
        (1.5, 100, 50),  # cut
        (1.96, 100, 50),  # at the leaf at 2.01, left within: cut
        (2.0, 100, 50),  # passes
    ]
    played = Played(system(disturbances=[cut]), requests).to(5.0)
    log = played.log
    failed = np.array([False, True, True, True, True, False])
    assert (log["server"] < 0).tolist() == failed.tolist()
    assert errors(played) == {"unreachable": 4}
    sent_s = np.array([each[0] for each in requests])
    served_s = sent_s + 0.6 + 2 * TAU_S
    assert log["answer_s"] == pytest.approx(
        np.where(sent_s < 0.9, served_s, np.where(failed, sent_s + 2 * TAU_S, served_s))
    )


def test_reports_stop_at_a_cut_and_silence_makes_the_root_avoid_the_cell() -> None:
    cut = in_cell("partition", 1.0, 6.0, roots=["root-0"])
    scenario = system([1, 1], disturbances=[cut], error_aversion={"silence_s": 2.0})
    requests = [(0.1 * k, 10, 10) for k in range(90)]
    played = Played(scenario, requests, routing=[[0.5, 0.5]])
    # The last report that comes through left at 0.94: one that arrives at 1.0 meets the cut.
    view = played.to(5.0).simulator.view()
    assert view.probe_age_s[0, 0] == pytest.approx([5.0 - 0.94, 0.05])
    # Silent for more than 2 s at the updates of 3, 4 and 5 s: half of what is left, each time.
    ages_s = {t: t - 0.94 - TAU_S for t in (2.0, 3.0, 4.0, 5.0)}
    rate = 0.0
    for age_s in ages_s.values():
        rate += 0.5 * (0.95 - rate) if age_s > 2.0 else 0.0
    assert view.aversion[0, 0] == pytest.approx([rate, 0.0])
    assert rate == pytest.approx(0.83125)
    # Reports are back at 6.05 s; from 7 s on aversion falls by 0.05 an update.
    played.to(6.0)
    highest = rate + 0.5 * (0.95 - rate)
    assert played.simulator.view().aversion[0, 0, 0] == pytest.approx(highest)
    assert played.to(9.0).simulator.view().aversion[0, 0, 0] == pytest.approx(highest - 0.15)


# Latency shift.


def test_journeys_in_a_latency_shift_take_longer_and_answers_keep_their_order() -> None:
    shift = in_cell("latency_shift", 1.0, 2.0, extra_s=0.3, roots=["root-0"])
    requests = [(0.97, 10, 10), (1.0, 10, 10), (1.55, 10, 10), (1.65, 10, 2), (2.0, 10, 2)]
    log = Played(system(disturbances=[shift]), requests).to(5.0).log
    way_s = np.array([0.05, 0.35, 0.35, 0.35, 0.05])  # by when it leaves
    leaf_s = np.array([each[0] for each in requests]) + way_s
    done_s = leaf_s + np.array([0.11, 0.11, 0.11, 0.03, 0.03])
    assert log["leaf_s"] == pytest.approx(leaf_s)
    assert log["done_s"] == pytest.approx(done_s)
    # Done at 1.13, 1.46, 2.01, 2.03, 2.08: the first two answers take 0.35 s, until 1.48 and 1.81.
    assert log["answer_s"] == pytest.approx([1.48, 1.81, 2.06, 2.08, 2.13])


def test_an_answer_waits_for_those_that_left_before_it() -> None:
    shift = in_cell("latency_shift", 1.0, 2.0, extra_s=0.3, roots=["root-0"])
    requests = [(0.8, 40, 100), (0.86, 10, 113), (0.9, 10, 120)]
    # Leaf at 0.85, 0.91, 0.95; prefill until 0.89, 0.92, 0.96; done at 1.89, 2.05, 2.16. The first
    # answer needs until 2.24, and the second, which would be there at 2.10, comes with it; so does
    # the third, due at 2.21.
    log = Played(system(disturbances=[shift]), requests).to(5.0).log
    assert log["done_s"] == pytest.approx([1.89, 2.05, 2.16])
    assert log["answer_s"] == pytest.approx([2.24, 2.24, 2.24])


def test_the_round_trip_that_a_root_knows_follows_with_the_delay() -> None:
    shift = in_cell("latency_shift", 1.0, 2.0, extra_s=0.3, roots=["root-0"])
    played = Played(system(disturbances=[shift]), [])
    known = {t: played.to(t).simulator.view().rtt_s[0, 0, 0] for t in (1.0, 1.3, 1.4, 2.0, 2.1)}
    # A report that leaves at 1.0 comes at 1.35; one that leaves at 2.0 comes at 2.05.
    assert known == pytest.approx({1.0: 0.1, 1.3: 0.1, 1.4: 0.7, 2.0: 0.7, 2.1: 0.1})
    ages_s = played.simulator.view().probe_age_s
    assert ages_s[0, 0, 0] == pytest.approx(0.05)


# Leaf crash.


def test_a_leaf_crash_takes_its_count_from_the_reports_until_the_next_gathering() -> None:
    telemetry = {"leaf_replicas": 4, "turn_s": 0.0, "sync_interval_s": 0.5}
    crash = in_cell("leaf_crash", 1.25, 3.0, replicas=1)
    requests = [(0.1 + 0.02 * k, 1, 500) for k in range(12)]
    scenario = system([2], telemetry=telemetry, disturbances=[crash])
    played = Played(scenario, requests)
    known = {
        t: int(played.to(t).simulator.view().rif[0, 0, 0])
        for t in (1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 2.0)
    }
    # Round robin over 4 replicas: 3 of the 12 are replica 0's. It crashes at 1.25; reports of 1.25
    # and later come from 1.3 on; the gathering at 1.5 is known at 1.55.
    assert known == {1.2: 12, 1.3: 9, 1.4: 9, 1.5: 9, 1.6: 12, 1.7: 12, 2.0: 12}
    assert played.simulator.truth().rif[0, 0] == 12
    # All are answered, and the count comes back to 0 in reports too.
    assert played.to(8.0).log["server"].min() == 0
    assert played.simulator.view().rif[0, 0, 0] == 0


def test_requests_to_a_dead_replica_fail_until_the_probe_timeout_and_again_never() -> None:
    telemetry = {**REPLICAS, "leaf_replicas": 2, "probe_timeout_s": 0.4}
    crash = in_cell("leaf_crash", 1.005, 3.005, replicas=1)
    requests = [(0.5 + 0.025 * k, 1, 1) for k in range(120)]  # until 3.475
    scenario = system([8], telemetry=telemetry, disturbances=[crash])
    played = Played(scenario, requests).to(6.0)
    log = played.log
    sent_s = log["arrival_s"]
    # Replica 0 reports at even multiples of 10 ms: it is found dead at 1.02 by a probe that left
    # the root at 0.97 and times out at 1.37. Of what is at the leaf from 1.005 on, sent before
    # 1.37, every second request is replica 0's; later ones go to replica 1. Its first report since
    # 3.005 leaves at 3.02 and comes at 3.07: turns are taken again.
    replica = np.arange(120) % 2
    dead = (replica == 0) & (sent_s + TAU_S >= 1.005) & (sent_s < 1.37)
    assert (log["server"] < 0).tolist() == dead.tolist()
    assert errors(played) == {"unreachable": int(dead.sum())}
    assert dead.sum() == 8
    assert log["answer_s"][dead] == pytest.approx(sent_s[dead] + 2 * TAU_S)


def test_a_root_sends_to_a_replica_again_after_its_first_report() -> None:
    telemetry = {**REPLICAS, "leaf_replicas": 2, "probe_timeout_s": 0.2}
    crash = in_cell("leaf_crash", 1.005, 3.005, replicas=1)
    requests = [(2.03 + 0.05 * k, 1, 500) for k in range(40)]
    scenario = system([8], telemetry=telemetry, disturbances=[crash])
    simulator = Played(scenario, requests).to(4.5).simulator
    counts = simulator._extras.leaf[0, 0, :, extras.LEAF_RIF]  # type: ignore[union-attr]
    # Sent until 3.07: 21 requests, all to replica 1, the last one, number 20, when replica 0 is up
    # and its report under way; then 19, numbers 21 to 39, by turns: 22, ..., 38 are replica 0's.
    assert counts.tolist() == [9, 31]


def test_reports_of_a_dead_replica_do_not_come() -> None:
    telemetry = {**REPLICAS, "leaf_replicas": 5}
    crash = in_cell("leaf_crash", 1.0, 3.0, replicas=4)
    played = Played(system(telemetry=telemetry, disturbances=[crash]), [])
    assert played.to(0.9).simulator.view().probe_age_s[0, 0, 0] == pytest.approx(0.05)
    # Only replica 4 reports: the last one by 2.0 - 0.05 leaves at 1.94.
    assert played.to(2.0).simulator.view().probe_age_s[0, 0, 0] == pytest.approx(0.06)
    assert played.to(2.1).simulator.view().probe_age_s[0, 0, 0] == pytest.approx(0.06)


# Root crash.


def test_what_crashed_root_replicas_had_under_way_becomes_an_error() -> None:
    telemetry = {**REPLICAS, "root_replicas": 3}
    crash = fault("root_crash", 1.0, 3.0, replicas=1, roots=["root-0"])
    requests = [(0.3 + 0.05 * k, 10, 50) for k in range(40)]  # answered 0.61 s later
    played = Played(system([4], telemetry=telemetry, disturbances=[crash]), requests)
    log = played.to(6.0).log
    sent_s = log["arrival_s"]
    lost = (np.arange(40) % 3 == 0) & (sent_s < 1.0) & (sent_s + 0.61 >= 1.0)
    assert (log["server"] < 0).tolist() == lost.tolist()
    assert lost.sum() == 4
    # They come as answers that nobody waits for, when those would have come.
    assert log["answer_s"] == pytest.approx(sent_s + 0.61)
    assert errors(played) == {"root_crashed": 4}


def test_an_error_on_the_way_back_is_charged_when_it_comes() -> None:
    """Those of the test above, one by one: answers would have come at 1.06, 1.21, 1.36, 1.51."""
    telemetry = {**REPLICAS, "root_replicas": 3}
    crash = fault("root_crash", 1.0, 3.0, replicas=1, roots=["root-0"])
    requests = [(0.3 + 0.05 * k, 10, 50) for k in range(40)]
    played = Played(system([4], telemetry=telemetry, disturbances=[crash]), requests)
    charged = [int(played.to(0.1 * step).simulator.truth().rejected[0]) for step in range(1, 31)]
    assert np.flatnonzero(charged).tolist() == [10, 12, 13, 15]
    assert sum(charged) == 4


# Giving up.


def test_clients_give_up_when_their_prefill_would_start_too_late() -> None:
    design = {"kind": "disaggregated", "max_wait_s": 0.25}
    requests = [(sent_s, 100, 10) for sent_s in (0.1, 0.11, 0.12, 0.13, 0.14, 0.16)]
    played = Played(system(server=design), requests).to(3.0)
    log = played.log
    # Prefills start at 0.15, 0.25, 0.35; the next would at 0.45, which is 0.27 and 0.26 s after the
    # fourth and the fifth came (at 0.18 and 0.19): they leave 0.25 s later. The last came at 0.21.
    assert log["done_s"] == pytest.approx([0.35, 0.45, 0.55, 0.43, 0.44, 0.65])
    assert (log["server"] < 0).tolist() == [False, False, False, True, True, False]
    assert errors(played) == {"gave_up": 2}


def test_who_waits_to_give_up_takes_a_place_until_then() -> None:
    design = {"kind": "disaggregated", "max_wait_s": 0.25, "queue_limit": 5}
    sent_s = (0.1, 0.11, 0.12, 0.13, 0.14, 0.15, 0.395)
    requests = [(each_s, 100, 100) for each_s in sent_s]
    played = Played(system(server=design), requests)
    assert [played.to(t).simulator.truth().rif[0, 0] for t in (0.3, 0.4, 0.5)] == [5, 5, 4]
    log = played.to(3.0).log
    # The sixth finds the server full. The fourth and the fifth leave at 0.43 and 0.44; the last
    # comes at 0.445, and its prefill starts at 0.45.
    assert errors(played) == {"full": 1, "gave_up": 2}
    assert log["done_s"][[3, 4, 5]] == pytest.approx([0.43, 0.44, 0.2])
    assert log["first_token_s"][6] == pytest.approx(0.55)


# Retries.


def test_a_failed_request_leaves_again_at_the_next_decision_and_counts_from_its_first_arrival() -> (
    None
):
    crash = in_cell("server_crash", 1.0, 2.0, servers=1)
    # Numbers 0 and 1 go to servers 0 and 1; number 1 fails at 1.0 and is known at 1.05.
    requests = [(0.75, 100, 50), (0.76, 100, 50)]
    played = Played(system([2], disturbances=[crash], retries={"budget": 1.0}), requests)
    played.to(1.1)
    assert (played.simulator.books().retrying[0], played.simulator.truth().rejected[0]) == (1, 0)
    played.balance()
    log = played.to(3.0).log
    # Sent at 1.1, at the leaf at 1.15, done at 1.75.
    assert log["leaf_s"] == pytest.approx([0.8, 1.15])
    assert log["done_s"] == pytest.approx([1.4, 1.75])
    sums = played.simulator.measurements()
    assert sums.latency_sum_s[0] == pytest.approx((1.45 - 0.75) + (1.8 - 0.76))
    assert (sums.arrived[0], sums.errors[0], log["server"].min()) == (2, 0, 0)


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_request_is_sent_again_at_most_so_often(attempts: int) -> None:
    hole = in_cell("black_hole", 0.2, 10.0, error_fraction=1.0)
    retries = {"attempts": attempts, "budget": 1.0}
    requests = [(0.01 * k, 10, 10) for k in range(1, 7)] + [(0.25, 10, 10)] * 3
    played = Played(system(disturbances=[hole], retries=retries), requests)
    log = played.to(5.0).log
    # Of 9 requests the last 3 fail. Errors come back after 0.1 s, at 0.35; tries leave at 0.4, 0.5,
    # and so on, and fail likewise.
    counts = played.simulator.counts()
    assert counts is not None
    assert counts.resent[0] == 3 * attempts
    last_s = 0.4 + 0.1 * (attempts - 1)
    assert log["answer_s"][6:] == pytest.approx([last_s + 0.1] * 3)
    assert errors(played) == {"black_hole": 3}
    assert played.simulator.books().errors[0] == 3


@pytest.mark.parametrize("budget", [0.0, 0.1, 0.5])
def test_retries_stay_within_the_budget(budget: float) -> None:
    hole = in_cell("black_hole", 0.0, 10.0, error_fraction=1.0)
    retries = {"attempts": 5, "budget": budget}
    requests = [(0.01 * k, 10, 10) for k in range(500)]
    played = Played(system(disturbances=[hole], retries=retries), requests)
    resent = 0
    for step in range(1, 60):
        played.to(step * STEP_S)
        played.balance()
        counts = played.simulator.counts()
        assert counts is not None
        resent = int(counts.resent[0])
        arrived = int(played.simulator.books().arrived[0])
        assert resent <= budget * arrived + extras.RETRY_BURST
    assert resent >= budget * 480 - 10  # and it is used: there is always something to try again


def test_a_reward_counts_the_errors_that_are_final() -> None:
    hole = in_cell("black_hole", 0.0, 10.0, error_fraction=1.0)
    played = Played(system(disturbances=[hole], retries={"budget": 1.0}), [(0.25, 10, 10)] * 3)
    rejected = [played.to(step * STEP_S).simulator.truth().rejected[0] for step in range(1, 9)]
    assert sum(rejected) == 3


# Black hole.


def test_a_black_hole_fails_its_share_at_once() -> None:
    hole = in_cell("black_hole", 1.0, 4.0, error_fraction=0.3)
    requests = [(0.002 * k, 1, 1) for k in range(2500)]
    log = Played(system([20], disturbances=[hole]), requests).to(8.0).log
    failed = log["server"] < 0
    inside = (log["leaf_s"] >= 1.0) & (log["leaf_s"] < 4.0)
    assert not failed[~inside].any()
    # 1500 draws: five standard deviations are 0.06.
    assert failed[inside].mean() == pytest.approx(0.3, abs=0.06)
    assert log["done_s"][failed].tolist() == log["leaf_s"][failed].tolist()
    assert log["answer_s"][failed] == pytest.approx(log["arrival_s"][failed] + 2 * TAU_S)


# Everything at once.

EVERYTHING: dict[str, Any] = {
    "telemetry": {"probe_loss": 0.05, "backlogs": True},
    "latency_estimate": {"kind": "online", "background": 0.01, "refit_interval_s": 2.0},
    "error_aversion": {},
    "affinity": {},
    "retries": {"attempts": 2, "budget": 0.02},
    "demand.sessions": {},
    "server": {"kind": "disaggregated", "max_wait_s": 3.0},
    "warmup_s": 2.0,
    "horizon_s": 10.0,
    "disturbances": [
        {"kind": "server_crash", "servers": 50, "start": 0.1, "end": 0.5},
        {"kind": "black_hole", "start": 0.2, "end": 0.4},
        {"kind": "slow_cell", "start": 0.15, "end": 0.45},
        {"kind": "leaf_crash", "start": 0.2, "end": 0.7},
        {"kind": "root_crash", "start": 0.3, "end": 0.6},
        {"kind": "partition", "start": 0.5, "end": 0.6},
        {"kind": "latency_shift", "start": 0.35, "end": 0.9},
        {"kind": "outage", "start": 0.4, "end": 0.8},
        {"kind": "burst", "to_utilisation": 1.1, "start": 0.2, "end": 0.7},
    ],
}


def test_the_books_balance_under_everything_at_once() -> None:
    scenario = override(load_scenario("global_six"), EVERYTHING)
    simulator = Simulator(3, 6, 6)
    for r in range(3):
        simulator.reset_row(r, scenario, 40 + r, 0)
    rng = np.random.default_rng(0)
    spent: list[int] = []
    for step in range(1, 151):
        if step % 10 == 1:
            weights = rng.random((3, 6, 6))
            routing = weights / weights.sum(axis=-1, keepdims=True)
            simulator.set_routing(routing, np.array([step % 2] * 3))
        simulator.advance(np.full(3, step))
        assert_balanced(simulator)
        spent.append(int(simulator.books().errors.sum()))
    assert spent == sorted(spent)
    seen = simulator.measurements().errors_by_kind.sum(axis=0)
    assert dict(zip(KINDS, (seen > 0).tolist(), strict=True)) == dict.fromkeys(KINDS, True)
    simulator.advance(np.full(3, 900))
    drained = simulator.books()
    assert (drained.arrived == drained.answered + drained.errors).all()


@pytest.mark.parametrize("name", ["black_hole", "faults"])
def test_a_shipped_scenario_answers_or_fails_every_request(name: str) -> None:
    changes = {"warmup_s": 2.0, "settle_s": 0.0, "horizon_s": 10.0}
    scenario = override(load_scenario(name), changes)
    (result,) = rollout(
        [Run("baselines.discrete:DiscreteScore", {"cost": "rif"}, scenario=scenario)]
    )
    record = result.record
    assert record["unfinished"] == 0
    assert record["requests"] == record["answered"] + record["errors"]
    assert record["errors"] == sum(record[f"errors_{kind}"] for kind in KINDS)


# Bad input.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"error_aversion": {"interval_s": 0.05}},
            r"aversion\.interval_s = 0\.05 is shorter",
        ),
        (
            {
                "telemetry": {},
                "disturbances": [
                    {"kind": "leaf_crash", "cells": ["cell-0"], "end": 0.5},
                    {"kind": "leaf_crash", "cells": ["cell-0"], "start": 0.6},
                ],
            },
            r"disturbances\.1: a second leaf_crash may concern the same place",
        ),
        (
            {"telemetry": {}, "disturbances": [{"kind": "root_crash"}, {"kind": "root_crash"}]},
            r"disturbances\.1: a second root_crash may concern the same place",
        ),
    ],
)
def test_faults_that_contradict_the_scenario_are_errors_at_load(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        system(**changes)
