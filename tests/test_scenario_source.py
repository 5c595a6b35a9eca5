"""Where scenarios come from: names, files, dictionaries, bases and changes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dlb_gym.disturbance_models import Burst, Outage
from dlb_gym.episodes import episode_source
from dlb_gym.network import NetworkError, rtt_s
from dlb_gym.rates import demand_shares, nominal_rates_rps, offered_rate_rps, zero_load_time_s
from dlb_gym.scenario_source import (
    SCENARIO_DIR,
    ScenarioError,
    load_scenario,
    override,
    scenario_names,
)
from dlb_gym.trace import describe_trace
from dlb_gym.trace_file import TraceError
from tests.scenarios_by_hand import DATA, needs, two_cells

GCP = DATA / "network" / "gcp_rtt_2019_ms.csv"


def test_the_shipped_scenarios_are_those_promised() -> None:
    assert set(scenario_names()) >= {
        "global_six",
        "burst",
        "outage",
        "sand",
        "boulder",
        "homogeneous",
        "hot",
        "residency",
    }


@pytest.mark.parametrize("name", scenario_names())
def test_a_shipped_scenario_loads_bears_its_name_and_says_what_it_probes(name: str) -> None:
    assert load_scenario(name).name == name
    file = f"{name.partition('/')[0]}.toml"  # "endpoints/sand" stands in endpoints.toml
    comment = (SCENARIO_DIR / file).read_text(encoding="utf-8").split("\nbase = ")[0]
    opening = [line for line in comment.splitlines() if line.startswith("#")]
    assert comment.startswith("#")
    assert any("Probes" in line for line in opening)


def test_global_six_has_the_loads_its_comment_states() -> None:
    scenario = load_scenario("global_six")
    assert len({cell.region.split("-")[0] for cell in scenario.cells}) == 3
    rates_rps = nominal_rates_rps(scenario)
    demand_rps = demand_shares(scenario) * offered_rate_rps(scenario)
    demand_of, rate_of = demand_rps.reshape(3, 2).sum(axis=1), rates_rps.reshape(3, 2).sum(axis=1)
    percent = np.rint(100 * demand_of / rate_of).tolist()
    assert percent == [96, 77, 55]
    assert [round(100 * demand_rps[k] / rates_rps[k]) for k in (1, 3)] == [142, 106]
    assert demand_rps.sum() / rates_rps.sum() == pytest.approx(0.8)


def test_sand_is_global_six_with_tenths_of_the_time_and_ten_times_the_rate() -> None:
    sand, six = load_scenario("sand"), load_scenario("global_six")
    for fine, coarse in zip(sand.cells, six.cells, strict=True):
        assert (fine.name, fine.servers) == (coarse.name, coarse.servers)
        assert fine.prefill_s_per_token == pytest.approx(coarse.prefill_s_per_token / 10)
        assert fine.decode_s_per_token == pytest.approx(coarse.decode_s_per_token / 10)
    assert offered_rate_rps(sand) == pytest.approx(10 * offered_rate_rps(six))
    assert sand.probe_interval_s == 1e-3


def test_boulders_take_minutes_and_hot_runs_at_95_percent() -> None:
    boulder = load_scenario("boulder")
    assert zero_load_time_s(boulder) > 120
    assert boulder.warmup_s > 10 * zero_load_time_s(boulder)
    assert load_scenario("hot").demand.utilisation == 0.95


def test_homogeneous_cells_differ_in_name_and_region_alone() -> None:
    cells = load_scenario("homogeneous").cells
    designs = {(c.servers, c.prefill_s_per_token, c.decode_s_per_token) for c in cells}
    assert len(designs) == 1


def test_burst_and_outage_are_disturbed_global_six() -> None:
    six = load_scenario("global_six")
    disturbed = {"burst": Burst(), "outage": Outage()}
    for name, disturbance in disturbed.items():
        expected = override(six, {"name": name, "disturbances": [disturbance.model_dump()]})
        assert load_scenario(name) == expected


def test_residency_keeps_european_requests_in_europe_only() -> None:
    for root in load_scenario("residency").roots:
        if root.region.startswith("europe"):
            assert root.reachable == ("europe-west1", "europe-west3")
        else:
            assert root.reachable is None


def test_a_base_is_changed_where_the_document_says_so() -> None:
    document = {
        "base": "global_six",
        "demand": {"utilisation": 0.6},
        "cells.2.servers": 3,
        "tokens": {"output": {"mean_tokens": 100.0}},
    }
    expected = override(
        load_scenario("global_six"),
        {"demand.utilisation": 0.6, "cells.2.servers": 3, "tokens.output.mean_tokens": 100.0},
    )
    assert load_scenario(document) == expected


def test_a_file_may_have_a_base(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "global_six"\nname = "mine"\nhorizon_s = 30\n', encoding="utf-8")
    assert load_scenario(path) == override(
        load_scenario("global_six"), {"name": "mine", "horizon_s": 30.0}
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"base": "globl_six"}, "'globl_six' is no shipped scenario; nearest valid key: 'global_s"),
        ({"base": 3}, "base = '3' is no shipped scenario"),
        ({"base": "hot"}, "has a base itself; name that one, 'global_six'"),
        ({"base": "global_six", "horizn_s": 1.0}, "'horizn_s' is unknown; nearest .*'horizon_s'"),
        ({"base": "global_six", "cells.6.servers": 1}, "'cells.6' does not lead to a value"),
        ({"base": "global_six", "cells": 0}, "'cells': Input should be a valid tuple"),
    ],
)
def test_a_bad_base_or_change_of_it_is_refused(document: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load_scenario(document)


def test_an_unknown_name_lists_what_is_shipped() -> None:
    told = (
        r"'global-six' is not shipped; nearest .*'global_six'; shipped: .*, hot, .*; a file's "
        r"name must end in \.toml"
    )
    with pytest.raises(ScenarioError, match=told):
        load_scenario("global-six")


def test_files_that_are_missing_or_not_toml_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="does not exist; check the path"):
        load_scenario(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_bytes(b"name = \xff")
    with pytest.raises(ScenarioError, match=r"^scenario file '.*' is not .*; save it in UTF-8$"):
        load_scenario(broken)
    broken.write_text("name = ", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"^scenario file '.*' is not readable .*; correct it$"):
        load_scenario(broken)


def test_a_file_too_large_for_a_scenario_is_not_read(tmp_path: Path) -> None:
    """A sparse file of 1 TiB: reading it would end the process."""
    huge = tmp_path / "huge.toml"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    told = r"holds 1,099,511,627,776 bytes or more; at most [\d,]+ are read: leave out what is not"
    with pytest.raises(ScenarioError, match=told):
        load_scenario(huge)


def test_a_scenario_and_its_document_load_as_themselves() -> None:
    scenario = load_scenario("residency")
    assert load_scenario(scenario) is scenario
    assert load_scenario(scenario.model_dump()) == scenario
    assert load_scenario(scenario.model_dump(mode="json")) == scenario


def test_changes_reach_into_tables_and_lists_and_keep_the_rest() -> None:
    scenario = two_cells()
    changes = {"cells.1.servers": 7, "demand": {"profile": {"peak_hour": 3.0}}}
    changed = override(scenario, changes)
    assert changed.cells[1].servers == 7
    assert changed.cells[0] == scenario.cells[0]
    assert changed.demand.utilisation == 0.5
    assert changed.demand.profile.peak_hour == 3.0
    assert scenario.cells[1].servers == 4


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("demnd.utilisation", "'demnd' is unknown; nearest valid key: 'demand'"),
        ("demand.utilization", "'demand.utilization' is unknown; nearest valid key: 'utilisation'"),
        ("demand.utilisation.x", "'demand.utilisation.x' does not lead to a value"),
        ("cells.9.servers", "'cells.9' does not lead to a value; check its parts"),
        ("cells.first.servers", "'cells.first' does not lead to a value"),
        ("demand.trace.path", "'demand.trace.path' does not lead to a value"),
    ],
)
def test_a_change_of_what_is_not_there_is_refused(key: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        override(two_cells(), {key: 1})


def matrix(folder: Path, regions: list[str]) -> Path:
    """A measured matrix: 10 ms from the first region to the second, 30 ms back, 1 ms at home."""
    path = folder / "rtt.csv"
    path.write_text(f"region,{','.join(regions)}\n{regions[0]},1,10\n{regions[1]},30,1\n")
    return path


def test_a_measured_matrix_replaces_the_model(tmp_path: Path) -> None:
    path = matrix(tmp_path, ["europe-west4", "us-east4"])
    scenario = load_scenario(two_cells(), rtt_csv=path)
    assert scenario.network.rtt_s == ((1e-3, 20e-3), (20e-3, 1e-3))
    based = {"base": "global_six", **{k: two_cells().model_dump()[k] for k in ("cells", "roots")}}
    assert load_scenario(based, rtt_csv=path).network.rtt_s == scenario.network.rtt_s


def test_a_measured_matrix_serves_regions_the_model_does_not_know(tmp_path: Path) -> None:
    document = two_cells().model_dump()
    for key in ("cells", "roots"):
        for place, region in zip(document[key], ("earth", "moon"), strict=True):
            place["region"] = region
    scenario = load_scenario(document, rtt_csv=matrix(tmp_path, ["earth", "moon"]))
    assert scenario.network.rtt_s == ((1e-3, 20e-3), (20e-3, 1e-3))


def test_a_region_the_matrix_lacks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="'europe-west4' is not in the RTT file"):
        load_scenario(two_cells(), rtt_csv=matrix(tmp_path, ["us-east4", "europe-west3"]))


def test_a_matrix_cannot_be_matched_to_places_without_a_region(tmp_path: Path) -> None:
    path = matrix(tmp_path, ["us-east4", "europe-west4"])
    for places in (0, [], [{"name": "east"}]):
        with pytest.raises(ScenarioError, match="must list tables with a region each"):
            load_scenario({"name": "x", "cells": places, "roots": places}, rtt_csv=path)


@needs(GCP)
@pytest.mark.parametrize("name", scenario_names())
def test_shipped_scenarios_lie_in_the_measured_matrix(name: str) -> None:
    scenario = load_scenario(name, rtt_csv=GCP)
    assert scenario.network.rtt_s is not None
    measured_s = scenario.network.rtt_s[0][4]
    modelled_s = rtt_s("us-central1", "asia-northeast1")
    assert math.isclose(measured_s, modelled_s, rel_tol=0.3)


MOONCAKE_TEXT = "timestamp,input_length,output_length\n0,100,10\n2000,300,20\n"
OTHER_TEXT = "when,in,out\n0,1,2\n60,3,4\n"


def test_a_path_in_a_file_starts_at_the_files_folder_and_the_rest_is_filled_in(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").mkdir()
    trace = tmp_path / "data" / "requests.csv"
    trace.write_text(MOONCAKE_TEXT)
    path = tmp_path / "mine.toml"
    path.write_text('base = "global_six"\n[demand.trace]\npath = "data/requests.csv"\n')
    assert load_scenario(path).demand.trace == describe_trace(trace)
    path.write_text(f'base = "global_six"\n[demand.trace]\npath = "{trace}"\n')
    assert load_scenario(path).demand.trace == describe_trace(trace)


def test_a_path_in_a_dictionary_starts_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requests.csv").write_text(MOONCAKE_TEXT)
    monkeypatch.chdir(tmp_path)
    given = {"trace": {"path": "requests.csv"}}
    for scenario in (
        load_scenario({"base": "global_six", "demand": given}),
        override(two_cells(), {"demand": given}),
        override(two_cells(), {"demand.trace": given["trace"]}),
    ):
        assert scenario.demand.trace == describe_trace("requests.csv")
        assert load_scenario(scenario.model_dump(mode="json")) == scenario


def test_columns_that_are_named_need_no_digest_and_keep_their_unit(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(OTHER_TEXT)
    named = {"time_column": "when", "prompt_column": "in", "output_column": "out"}
    given = {"path": str(path), **named, "time_unit_s": 0.5}
    trace = override(two_cells(), {"demand.trace": given}).demand.trace
    assert trace == describe_trace(path, **named, time_unit_s=0.5)
    path.write_text(MOONCAKE_TEXT)  # all three named: the unit is 1 s, with a digest or without
    named = {"time_column": "timestamp", "prompt_column": "input_length"}
    described = describe_trace(path)
    for given in ({}, {"sha256": described.sha256}):
        given |= {"path": str(path), **named, "output_column": "output_length"}
        trace = override(two_cells(), {"demand.trace": given}).demand.trace
        assert trace == described.model_copy(update={"time_unit_s": 1.0})


def test_another_path_is_another_trace(tmp_path: Path) -> None:
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text(MOONCAKE_TEXT)
    second.write_text(OTHER_TEXT.replace("when,in,out", "arrived_at,num_prefill_tokens,out"))
    scenario = override(two_cells(), {"demand.trace": {"path": str(first)}})
    with pytest.raises(TraceError, match="these are not known"):
        override(scenario, {"demand.trace": {"path": str(second)}})
    second.write_text(MOONCAKE_TEXT + "3000,1,1\n")
    changed = override(scenario, {"demand": {"trace": {"path": str(second)}}})
    assert changed.demand.trace == describe_trace(second)


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ({"path": "none.csv"}, "'none.csv' does not exist"),
        ({"path": 3}, "'demand.trace.path': Input should be a valid string"),
        ({"path": "none.csv", "time_colum": "t"}, "'demand.trace.time_colum' is unknown; nearest"),
        ({}, "'demand.trace.path' is missing"),
        ("none.csv", "'demand.trace': Input should be"),
    ],
)
def test_a_trace_that_cannot_be_filled_in_is_refused_by_name(trace: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_scenario({"base": "global_six", "demand": {"trace": trace}})


def test_a_familys_trace_is_described_once(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(MOONCAKE_TEXT)
    source = episode_source(family="appendix_b", changes={"demand.trace": {"path": str(path)}})
    described = describe_trace(path)
    path.write_text(OTHER_TEXT)
    assert source.scenario(0, 3, 1).demand.trace == described


def test_a_list_has_at_most_one_scenario_for_every_row() -> None:
    names = ["global_six", "hot"]
    source = episode_source(names, num_envs=3)
    assert [source.scenario(row, 0, 0).name for row in range(3)] == [*names, "global_six"]
    assert episode_source(names).scenario(1, 0, 0).name == "hot"
    with pytest.raises(ScenarioError, match="lists 2 scenarios for num_envs = 1"):
        episode_source(names, num_envs=1)
    with pytest.raises(ScenarioError, match="lists 2 scenarios for num_envs = 1"):
        episode_source(names, None, None, None, None, 1)


def test_the_reports_under_way_are_bounded() -> None:
    """A round trip of 0.2 s keeps 0.1 s / 1e-6 s = 100,000 reports under way."""
    measured = {"network.rtt_s": [[0.2, 0.2], [0.2, 0.2]], "probe_interval_s": 1.001e-6}
    assert episode_source(override(two_cells(), measured)).max_cells == 2
    with pytest.raises(
        ScenarioError, match=r"9.9e-07 keeps 1.01e\+05 reports .* to 1e-06 s or more"
    ):
        episode_source(override(two_cells(), measured | {"probe_interval_s": 9.9e-7}))


def test_a_comment_with_many_dots_is_no_key(tmp_path: Path) -> None:
    """Keys of so many parts are refused; `a.b.c` in a comment or a text is no key."""
    path = tmp_path / "dotted.toml"
    dotted = ".".join("abcdefghijklmnopqrstuvwxyz")
    path.write_text(f'# from {dotted}\n# {dotted}.x\nbase = "global_six"\nname = "n"\n')
    assert load_scenario(path).name == "n"
    path.write_text(f'base = "global_six"\nname = "n"\n{dotted} = 1\n')
    with pytest.raises(ScenarioError, match="has a key of more than 16 tables"):
        load_scenario(path)
