"""Scenarios as data: what is refused, and how the message helps."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from dlb_gym.scenario import Scenario
from dlb_gym.scenario_checks import nearest_key
from dlb_gym.scenario_source import ScenarioError, override, scenario_from_dict
from tests.scenarios_by_hand import two_cells

TRACE = {
    "path": "a.csv",
    "sha256": "0" * 64,
    "time_column": "t",
    "prompt_column": "p",
    "output_column": "o",
}


def changed(**changes: Any) -> dict[str, Any]:
    """The document of `two_cells` with top-level keys replaced."""
    return two_cells().model_dump() | changes


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(ScenarioError) as caught:
        scenario_from_dict(document)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("cells", 0, "scenario key 'cells': Input should be a valid tuple (got '0')"),
        ("cells", [], "scenario key 'cells': Tuple should have at least 1 item"),
        ("horizon", 60.0, "scenario key 'horizon' is unknown; nearest valid key: 'horizon_s'"),
        ("horizon_s", "60", "scenario key 'horizon_s': Input should be a valid number (got '60')"),
        ("horizon_s", math.nan, "scenario key 'horizon_s': Input should be"),
        ("horizon_s", math.inf, "scenario key 'horizon_s': Input should be a finite number"),
        ("horizon_s", 0.0, "scenario key 'horizon_s': Input should be greater than 0"),
        ("horizon_s", True, "scenario key 'horizon_s': Input should be a valid number"),
        ("horizon_s", 60.05, "horizon_s = 60.05 is no whole number of control intervals of 0.1 s"),
        ("warmup_s", 20.01, "warmup_s = 20.01 is no whole number of control intervals"),
        ("settle_s", 0.25, "settle_s = 0.25 is no whole number of control intervals"),
        ("warmup_s", -1.0, "scenario key 'warmup_s': Input should be greater than or equal to 0"),
        ("probe_interval_s", 61.0, "probe_interval_s = 61.0 exceeds horizon_s = 60.0"),
        (
            "control_interval_s",
            1e-9,
            "control_interval_s = 1e-09 makes 8e+10 control intervals in an episode of 80 s",
        ),
        ("probe_interval_s", 1e-8, "probe_interval_s = 1e-08 makes 8e+09 reports of a cell in an"),
        ("horizon_s", 1e9, "control_interval_s = 0.1 makes 1e+10 control intervals"),
        ("horizon_s", 1e308, "Input should be less than or equal to 1000000000"),
        ("dispatch", "smoth", "scenario key 'dispatch': Input should be 'sample' or 'smooth'"),
        ("name", "", "scenario key 'name': String should have at least 1 character"),
        (
            "disturbances",
            [{"kind": "flood"}],
            "scenario key 'disturbances.0.kind' = 'flood' is unknown; choose one of",
        ),
        (
            "control_interval_s",
            1e-13,
            "'control_interval_s': must be at least 1e-12; choose a larger number (got '1e-13')",
        ),
        (
            "disturbances",
            [{"kind": "burst", "start": 0.7, "end": 0.7}],
            "start = 0.7 must come before end = 0.7",
        ),
        (
            "disturbances",
            [{"kind": "burst", "root": "eats"}],
            "disturbances.0.root names 'eats', which does not exist; nearest valid key: 'east'",
        ),
        (
            "disturbances",
            [{"kind": "outage", "cells": ["wets"]}],
            "disturbances.0.cells names 'wets', which does not exist; nearest valid key: 'west'",
        ),
        (
            "disturbances",
            [{"kind": "outage", "servers_left": 0}],
            "servers_left': Input should be greater than or equal to 1",
        ),
    ],
)
def test_a_bad_value_is_refused_by_name(key: str, value: object, message: str) -> None:
    assert message in refusal(changed(**{key: value}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("demand.utilization", 0.5, "'demand.utilization' is unknown; nearest valid key: 'util"),
        ("demand.utilisation", 0.0, "'demand.utilisation': Input should be greater than 0"),
        ("demand.profile.peak_hour", 24.0, "'demand.profile.peak_hour': Input should be less"),
        (
            "demand.profile.synchronised_width_s",
            60.0,
            "synchronised_width_s = 60.0 must be shorter than synchronised_period_s = ",
        ),
        ("cells.0.servers", 0, "'cells.0.servers': Input should be greater than or equal to 1"),
        ("cells.0.servers", 2.5, "'cells.0.servers': Input should be a valid integer"),
        ("cells.0.prefil_s_per_token", 1e-4, "is unknown; nearest valid key: 'prefill_s_per_"),
        ("cells.1.name", "east", "cells: the name 'east' stands twice"),
        ("cells.1.region", "europe-west44", "nearest valid key: 'europe-west4'"),
        ("roots.1.name", "east", "roots: the name 'east' stands twice"),
        ("roots.0.reachable", [], "roots.east.reachable is empty: a root needs at least one arc"),
        ("roots.0.reachable", ["wst"], "roots.east.reachable names 'wst', which does not exist"),
        ("roots.0.demand", -1.0, "'roots.0.demand': Input should be greater than or equal to 0"),
        ("tokens.prompt.mean_tokens", 20.0, "mean_tokens = 20.0 must exceed loc_tokens = 20"),
        ("network.rtt_s", [[0.1, 0.1]], "network.rtt_s must have 2 rows (roots) of 2 values"),
        ("network.rtt_s", [[0.1], [0.1, 0.1]], "network.rtt_s must have 2 rows (roots) of 2"),
        ("network.rtt_s", [[0.1, -0.1], [0.1, 0.1]], "'network.rtt_s.0.1': Input should be"),
        ("network.rtt_s", [[0.1, math.nan], [0.1, 0.1]], "'network.rtt_s.0.1': Input should be"),
        ("network.mean_rtt_s", 0.0, "'network.mean_rtt_s': Input should be greater than 0"),
        (
            "cells.0.servers",
            100_000,
            "server.queue_limit: 2 cells x 100,000 servers (the largest cell's) x 32 places a "
            "server = 6,400,000 places in a replication; at most 5,000,000 are kept in memory",
        ),
        ("server.slots_per_engine", 0, "'server.slots_per_engine': Input should be greater"),
    ],
)
def test_a_bad_nested_value_is_refused_by_name(key: str, value: object, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        override(two_cells(), {key: value})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("cells.0.server", "nearest valid key: 'servers'; 'server' belongs to the scenario itself"),
        ("demand.horizon_s", "'horizon_s' belongs to the scenario itself"),
        ("server.queue_limt", "nearest valid key: 'queue_limit'"),
        ("cells.0.warmup_s", "'warmup_s' belongs to the scenario itself"),
        ("demand.xyz", "valid keys here: profile, sessions, trace, utilisation"),
        ("bse", "nearest valid key: 'base'"),
    ],
)
def test_an_unknown_key_is_told_the_keys_of_its_own_table(key: str, remedy: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        override(two_cells(), {key: 1})
    assert str(caught.value) == f"scenario key {key!r} is unknown; {remedy}"


def test_an_unknown_key_of_a_disturbance_is_told_those_of_its_kind() -> None:
    message = refusal(changed(disturbances=[{"kind": "burst", "strt": 0.1}]))
    assert message.endswith("'disturbances.0.strt' is unknown; nearest valid key: 'start'")
    message = refusal(changed(disturbances=[{"kind": "outage", "root": "east"}]))
    assert message.endswith("is unknown; 'root' belongs to 'disturbances' of kind 'burst'")


def test_sizes_at_their_bounds_are_accepted() -> None:
    weeks = {"warmup_s": 0.0, "horizon_s": 604_800.0, "probe_interval_s": 1e-3}
    assert override(two_cells(), weeks).horizon_s == 604_800.0
    cells = {"cells.0.servers": 78_125, "server.queue_limit": 32}  # 2 x 78,125 x 32 = 5,000,000
    assert override(two_cells(), cells).cells[0].servers == 78_125
    with pytest.raises(ScenarioError, match=r"slots_per_engine: .* lower slots or engines"):
        override(two_cells(), {"cells.0.servers": 78_125, "server.slots_per_engine": 17})


def test_an_autoscaler_may_give_all_servers_to_one_cell() -> None:
    """2 cells of 50,000 servers: 100,000 in either, and half as many again, of 32 places each."""
    message = refusal(
        changed(
            cells=[cell | {"servers": 50_000} for cell in changed()["cells"]],
            autoscaler={"extra_servers": 0.5},
        )
    )
    assert message.endswith(
        "server.queue_limit: 2 cells x 150,000 servers (the autoscaler may give all to one cell) "
        "x 32 places a server = 9,600,000 places in a replication; at most 5,000,000 are kept in "
        "memory: lower queue_limit or servers"
    )


def test_every_fault_of_a_document_is_listed() -> None:
    lines = refusal(changed(horizon_s=-1.0, cels=[], warmup_s="x")).splitlines()
    assert len(lines) == 3


def test_a_missing_key_is_named() -> None:
    document = changed()
    del document["cells"][0]["servers"]
    assert "scenario key 'cells.0.servers' is missing" in refusal(document)


def test_someone_must_offer_requests() -> None:
    silent = [root | {"demand": 0.0} for root in changed()["roots"]]
    assert "every demand is 0; at least one root must offer requests" in refusal(
        changed(roots=silent)
    )


def test_a_partial_nested_table_keeps_the_other_defaults_or_is_refused() -> None:
    server = scenario_from_dict(changed(server={"queue_limit": 8})).server
    assert (server.decode_engines, server.slots_per_engine, server.queue_limit) == (2, 4, 8)
    # Prompt and output differ in their defaults, so half a distribution is none.
    message = refusal(changed(tokens={"output": {"shape": 2.5, "loc_tokens": 1}}))
    assert message == "scenario key 'tokens.output.mean_tokens' is missing"
    output = override(two_cells(), {"tokens": {"output": {"shape": 2.5}}}).tokens.output
    assert (output.loc_tokens, output.shape, output.mean_tokens) == (10, 2.5, 200.0)


def test_unknown_regions_are_fine_where_round_trips_are_given() -> None:
    places = [place | {"region": "moon-base1"} for place in changed()["cells"]]
    measured = {"rtt_s": [[0.001, 0.1], [0.1, 0.001]]}
    scenario = scenario_from_dict(changed(cells=places, network=measured))
    assert scenario.cells[0].region == "moon-base1"
    roots = [place | {"region": "moon-base1"} for place in changed()["roots"]]
    daily = {"utilisation": 0.5, "profile": {"diurnal_amplitude": 0.5}}
    message = refusal(changed(roots=roots, network=measured, demand=daily))
    assert "region 'moon-base1' of 'east' is unknown; use a region of dlb_gym.network.RE" in message


def test_a_trace_and_a_profile_exclude_each_other() -> None:
    demand = {"trace": TRACE, "profile": {"diurnal_amplitude": 0.5}}
    message = refusal(changed(demand=demand))
    assert "demand.profile shapes synthetic arrivals and demand.trace brings its own; le" in message
    assert scenario_from_dict(changed(demand={"trace": TRACE})).demand.trace is not None


def test_scenarios_are_frozen_and_compare_by_content() -> None:
    scenario = two_cells()
    with pytest.raises(ValidationError, match="frozen"):
        scenario.horizon_s = 1.0  # type: ignore[misc]
    assert scenario == two_cells()
    assert hash(scenario) == hash(two_cells())
    assert scenario.digest() == two_cells().digest()
    longer = override(scenario, {"horizon_s": 61.0})
    assert longer.digest() != scenario.digest()
    assert scenario.horizon_s == 60.0


def test_a_scenario_survives_a_round_trip_through_json() -> None:
    scenario = two_cells(disturbances=[{"kind": "burst"}, {"kind": "outage"}])
    assert Scenario.model_validate_json(scenario.model_dump_json()) == scenario


def test_spans_count_in_control_intervals() -> None:
    scenario = two_cells(horizon_s=0.3, control_interval_s=0.1, warmup_s=0.0)
    assert scenario.intervals(scenario.horizon_s) == 3


def test_the_nearest_key_is_only_named_when_it_is_near() -> None:
    assert nearest_key("serves", ["servers", "region"]) == "; nearest valid key: 'servers'"
    assert nearest_key("xyz", ["servers", "region"]) == ""
