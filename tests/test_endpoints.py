"""Several endpoints: scenarios of one file, rows of one batch, one clock."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import train
from dlb_gym.envs import DLBEnv, DLBVectorEnv
from dlb_gym.episodes import episode_source
from dlb_gym.rates import nominal_rates_rps, offered_rate_rps, zero_load_time_s
from dlb_gym.runs import Run
from dlb_gym.sb3 import DLBVecEnv
from dlb_gym.scenario_source import (
    CLOCK,
    ScenarioError,
    load_endpoints,
    load_scenario,
    override,
    scenario_names,
)
from tests.short_episodes import STEPS, drawn_actions, play, short

SHORT = short("endpoints/sand")

PAIR: dict[str, Any] = {
    "name": "pair",
    "base": "global_six",
    "horizon_s": 2.0,
    "demand.utilisation": 0.6,
    "endpoints": [
        {"name": "quick", "tokens": {"output": {"mean_tokens": 50.0}}},
        {"name": "busy", "demand.utilisation": 0.9},
        {"name": "plain"},
    ],
}


def pair(**changes: Any) -> dict[str, Any]:
    return PAIR | changes


def test_an_endpoint_is_its_base_with_what_all_share_and_its_own_keys_last() -> None:
    shared = override(load_scenario("global_six"), {"horizon_s": 2.0, "demand.utilisation": 0.6})
    quick, busy, plain = load_endpoints(PAIR)
    assert plain == override(shared, {"name": "pair/plain"})
    assert busy == override(shared, {"name": "pair/busy", "demand.utilisation": 0.9})
    tokens = {"tokens.output.mean_tokens": 50.0}
    assert quick == override(shared, {"name": "pair/quick", **tokens})


def test_an_endpoint_may_have_a_base_of_its_own_or_none(tmp_path: Path) -> None:
    whole = load_scenario("homogeneous").model_dump(mode="json") | {"name": "whole"}
    based = {"name": "based", "base": "global_six"}
    document = {"name": "mixed", "endpoints": [whole, based]}
    one, two = load_endpoints(document)
    assert one == override(load_scenario("homogeneous"), {"name": "mixed/whole"})
    assert two == override(load_scenario("global_six"), {"name": "mixed/based"})


def test_what_lists_no_endpoints_is_one_scenario() -> None:
    scenario = load_scenario("hot")
    for source in ("hot", scenario, scenario.model_dump()):
        assert load_endpoints(source) == (scenario,)
    assert load_scenario({"name": "pair", "base": "global_six", "endpoints": [{"name": "a"}]}).name


def test_the_shipped_endpoints_are_sand_and_boulders_on_the_same_machines_with_one_clock() -> None:
    """The ends of the paper's range: a tenth and ten times global_six, at the same load."""
    six = load_scenario("global_six")
    sand, boulder = load_endpoints("endpoints")
    assert (sand.name, boulder.name) == ("endpoints/sand", "endpoints/boulder")
    for endpoint, factor in ((sand, 0.1), (boulder, 10.0)):
        assert (endpoint.cells, endpoint.roots) == (six.cells, six.roots)
        assert zero_load_time_s(endpoint) == pytest.approx(factor * zero_load_time_s(six))
        assert offered_rate_rps(endpoint) == pytest.approx(0.8 * nominal_rates_rps(endpoint).sum())
        assert offered_rate_rps(endpoint) == pytest.approx(offered_rate_rps(six) / factor)
        assert endpoint.warmup_s > 10 * zero_load_time_s(endpoint)
    assert {(getattr(sand, key), getattr(boulder, key)) for key in CLOCK} == {
        (0.1, 0.1), (120.0, 120.0), (0.0, 0.0), (240.0, 240.0)
    }  # fmt: skip
    assert load_scenario("endpoints/boulder") == boulder
    assert {"endpoints/sand", "endpoints/boulder"} < set(scenario_names())
    assert "endpoints" not in scenario_names()


def test_an_endpoint_of_a_file_is_named_after_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        'name = "fleet"\nbase = "global_six"\n[[endpoints]]\nname = "a"\n'
        '[[endpoints]]\nname = "b"\n[endpoints.demand]\nutilisation = 0.5\n'
        '[[endpoints.disturbances]]\nkind = "outage"\n'
    )
    first, second = load_endpoints(path)
    assert load_scenario(f"{path}/b") == load_scenario(path / "b") == second
    assert (first.name, second.demand.utilisation) == ("fleet/a", 0.5)
    assert (len(first.disturbances), len(second.disturbances)) == (0, 1)


@pytest.mark.parametrize("key", CLOCK)
def test_endpoints_follow_one_clock(key: str) -> None:
    value = load_scenario("global_six").model_dump()[key] + 0.1
    document = {
        "name": "two", "base": "global_six", "settle_s": 0.0, "warmup_s": 2.0, "horizon_s": 6.0,
        "endpoints": [{"name": "a"}, {"name": "b", key: value}],
    }  # fmt: skip
    with pytest.raises(ScenarioError, match=rf"one clock, but {key} = .* in 'two/b'; state {key}"):
        load_endpoints(document)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (pair(endpoints=[]), "'endpoints' must list at least one table"),
        (pair(endpoints="sand"), "'endpoints' must list at least one table"),
        (pair(endpoints={"name": "a"}), "'endpoints' must list at least one table"),
        (pair(endpoints=["a"]), r"'endpoints.0.name' must consist of letters, .* \(got 'None'\)"),
        (pair(endpoints=[{"name": "a/b"}]), r"'endpoints.0.name' must .*'a/b'"),
        (
            pair(endpoints=[{"name": "a"}] * 2),
            "endpoints: the name 'a' stands twice; names must differ",
        ),
        (pair(name=3), "scenario key 'name' is missing or no text"),
        (pair(endpoints=[{"name": "a", "horizn_s": 1.0}]), "endpoint 'a': .*nearest .*'horizon_s'"),
        (pair(base="endpoints"), "endpoint 'quick': base = 'endpoints' lists several endpoints"),
        (
            pair(endpoints=[{"name": "a", "endpoints": []}]),
            "endpoint 'a': .*'endpoints' is unknown",
        ),
        ({"base": "global_six", "endpoint": []}, "nearest valid key: 'endpoints'"),
        ({"name": "alone", "endpoints": [{"name": "a"}]}, "endpoint 'a': .*'cells' is missing"),
    ],
)
def test_endpoints_that_make_no_sense_are_refused_by_name(
    document: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        load_endpoints(document)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("endpoints/snd", r"'endpoints' has no endpoint 'snd'; nearest .*'sand'; endpoints: sand"),
        ("hot/sand", "'hot/sand': the file lists no endpoints; leave out '/sand'"),
        ("endpoint/sand", "'endpoint/sand' is not shipped; nearest valid key: 'endpoints/sand'"),
        ("none.toml/sand", "file 'none.toml' does not exist"),
        (
            "endpoints",
            r"'endpoints' lists 2 endpoints \(sand, boulder\), rows of one batch, where one "
            "scenario is needed; name one of them, as in 'endpoints/sand'",
        ),
        (PAIR, r"'pair' lists 3 endpoints \(quick, busy, plain\).*as in 'pair/quick'"),
    ],
)
def test_one_scenario_is_not_to_be_had_from_several_or_from_none(source: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load_scenario(source)


def test_rows_of_a_batch_are_the_endpoints_in_turn_each_as_if_alone() -> None:
    envs = gym.make_vec("DLB-v0", num_envs=4, scenario="endpoints", changes=SHORT)
    assert isinstance(envs.unwrapped, DLBVectorEnv)
    observation, infos = envs.reset(seed=3)
    assert infos["scenario"].tolist() == ["endpoints/sand", "endpoints/boulder"] * 2
    actions = drawn_actions(envs.action_space, STEPS)
    stepped = [envs.step(action) for action in actions]
    assert stepped[-1][3].all()
    for row in range(4):
        name = ("endpoints/sand", "endpoints/boulder")[row % 2]
        alone = play(DLBEnv(name, changes=SHORT), actions[:, row], seed=3 + row)
        np.testing.assert_array_equal(observation[row], alone[0][0])
        for step, moved in enumerate(stepped):
            np.testing.assert_array_equal(moved[0][row], alone[0][step + 1])
            assert moved[1][row] == alone[1][step]


def test_the_spec_of_a_batch_of_endpoints_survives_json() -> None:
    envs = gym.make_vec("DLB-v0", num_envs=2, scenario="endpoints", changes=SHORT)
    assert envs.spec is not None
    again = gym.make_vec(gym.envs.registration.EnvSpec.from_json(envs.spec.to_json()))
    np.testing.assert_array_equal(again.reset(seed=0)[0], envs.reset(seed=0)[0])


def test_stable_baselines3_gets_the_endpoints_as_rows_too() -> None:
    env = DLBVecEnv(2, scenario="endpoints", changes=SHORT, action="weights", seed=3)
    expected = gym.make_vec("DLB-v0", num_envs=2, scenario="endpoints", changes=SHORT)
    np.testing.assert_array_equal(env.reset(), expected.reset(seed=3)[0])


def test_a_single_environment_refuses_endpoints_by_name_and_takes_one_of_them() -> None:
    with pytest.raises(
        ScenarioError,
        match=r"'endpoints' lists 2 .* num_envs = 1 .*gym.make_vec.* 'endpoints/sand'",
    ):
        gym.make("DLB-v0", scenario="endpoints")
    env = gym.make("DLB-v0", scenario="endpoints/boulder", changes=SHORT)
    assert env.reset(seed=0)[1]["scenario"] == "endpoints/boulder"


@pytest.mark.parametrize("make", [DLBVectorEnv, DLBVecEnv])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_are_no_multiple_of_the_endpoints_are_refused(make: Any, rows: int) -> None:
    with pytest.raises(ScenarioError, match=rf"num_envs = {rows} is no multiple of 2; make 2, 4,"):
        make(rows, scenario="endpoints")


def test_changes_hold_for_every_endpoint() -> None:
    source = episode_source("endpoints", changes={"demand.utilisation": 0.5}, num_envs=2)
    assert [source.scenario(r, 0, 0).demand.utilisation for r in range(3)] == [0.5] * 3


def records_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_evaluation_compares_policies_endpoint_by_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--set", "warmup_s=1.0", "--set", "horizon_s=1.0", "--settle", "0", "--seeds", "2")
    policies = ("--policies", "random", "capacity")
    arguments = ("--scenario", "endpoints", *options, *policies)
    assert train.main(["evaluate", *arguments]) == 0
    said = capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("evaluate-endpoints-")
    records = records_of(folder)
    assert [(record["policy"], record["scenario"]) for record in records] == [
        (policy, scenario)
        for policy in ("random", "capacity")
        for scenario in ("endpoints/sand", "endpoints/boulder")
        for _ in range(2)
    ]
    for name in ("endpoints/sand", "endpoints/boulder"):
        assert f"scenario {name}: 2 seeds" in said
        assert f"Scenario {name}<" in (folder / "report.html").read_text()
    assert train.main(["evaluate", "--scenario", "endpoints/sand", *options, *policies]) == 0
    (alone,) = (path for path in (tmp_path / "runs").iterdir() if path != folder)
    assert alone.name.startswith("evaluate-endpoints-sand-")
    sand = [record for record in records if record["scenario"] == "endpoints/sand"]
    assert records_of(alone) == sand


def test_a_run_takes_an_endpoint_as_its_scenario() -> None:
    runs = [Run("baselines.static:CapacitySplit", scenario=s) for s in load_endpoints("endpoints")]
    assert len({run.system for run in runs}) == 2


def test_an_agent_is_trained_on_all_endpoints_together_and_judged_on_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--set", "warmup_s=0.5", "--set", "horizon_s=0.5", "--settle", "0", "--seeds", "1")
    arguments = ("--scenario", "endpoints", "--steps", "64", "--reward", "goodput(1.5)")
    assert train.main([*arguments, *options, "--policies", "random", "--name", "both"]) == 0
    run = tmp_path / "runs" / "both"
    environment = json.loads((run / "config.json").read_text())["environment"]
    assert [document["name"] for document in environment["scenario"]] == [
        "endpoints/sand", "endpoints/boulder"
    ]  # fmt: skip
    assert environment["reward"] == "goodput(1.5)"
    assert [(r["policy"], r["scenario"]) for r in records_of(run)] == [
        (policy, scenario)
        for policy in ("ppo-both", "random")
        for scenario in ("endpoints/sand", "endpoints/boulder")
    ]


def test_the_endpoints_of_the_docs_load(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / "environment.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    path = tmp_path / "mine.toml"
    path.write_text(snippet, encoding="utf-8")
    sand, boulder = load_endpoints(path)
    assert (sand.name, sand.tokens.output.mean_tokens) == ("endpoints/sand", 20.0)
    assert (boulder.name, boulder.error_penalty) == ("endpoints/boulder", 5.0)
