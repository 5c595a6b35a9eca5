"""A batch is its rows: bit for bit, padded or not, whenever the other rows start or end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import baselines
from dlb_gym import simulator
from dlb_gym.actions import to_routing
from dlb_gym.envs import DLBEnv, DLBVectorEnv
from dlb_gym.episodes import episode_source
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.simulator import Simulator
from dlb_gym.task import Task
from tests.short_episodes import ring, short

EPISODES, STEPS = 2, 12


def cut(env: Any, observation: NDArray[np.float32], roots: int, cells: int) -> NDArray[np.float32]:
    """The fields of the first roots and cells, (fields, roots, cells)."""
    fields = env.task_spec.observation.decode(observation)
    return np.array([field[..., :roots, :cells] for field in fields.values()])


def assert_rows_are_singles(
    vector: DLBVectorEnv, singles: list[DLBEnv], episodes: int, seed: int
) -> None:
    """Plays SAME_STEP rows of one length beside single environments of seeds seed + row."""
    rng = np.random.default_rng(seed)
    shapes = [env.action_space.shape for env in singles]
    observations, _ = vector.reset(seed=seed)
    alone = [env.reset(seed=seed + row)[0] for row, env in enumerate(singles)]
    ended = 0
    while ended < episodes:
        for row, env in enumerate(singles):
            one = cut(vector, observations[row], *shapes[row])
            assert one.tobytes() == cut(env, alone[row], *shapes[row]).tobytes(), row
        actions = rng.random(vector.action_space.shape).astype(np.float32)
        observations, rewards, _, truncated, infos = vector.step(actions)
        for row, env in enumerate(singles):
            roots, cells = shapes[row]
            observation, reward, _, end, info = env.step(actions[row, :roots, :cells])
            assert (float(rewards[row]), bool(truncated[row])) == (reward, end), row
            if end:
                metrics = infos["final_info"]["metrics"]
                assert {name: metrics[name][row] for name in info["metrics"]} == pytest.approx(
                    info["metrics"], rel=0, abs=0, nan_ok=True
                )
                observation, _ = env.reset()
            alone[row] = observation
        ended += int(truncated.all())


@pytest.mark.parametrize("encoding", ["weights", "logits"])
@pytest.mark.parametrize("scenario", ["burst", "outage", "residency"])
def test_rows_of_one_scenario_are_singles_over_two_episodes(scenario: str, encoding: Any) -> None:
    keywords: dict[str, Any] = {
        "scenario": scenario, "action": encoding, "changes": short(scenario, STEPS)
    }  # fmt: skip
    vector = DLBVectorEnv(3, autoreset_mode="SameStep", **keywords)
    assert_rows_are_singles(vector, [DLBEnv(**keywords) for _ in range(3)], EPISODES, seed=5)


def test_padded_rows_of_different_scenarios_are_singles_over_two_episodes() -> None:
    """Sizes, horizons in seconds, intervals, service times and dispatch all differ."""
    scenarios = [
        ring(2, horizon_s=1.2),
        override(load_scenario("sand"), short("sand", STEPS) | {"dispatch": "smooth"}),
        ring(1, horizon_s=1.2, probe_interval_s=0.2),
        override(load_scenario("boulder"), short("boulder", STEPS)),
        ring(7, horizon_s=2.4, control_interval_s=0.2),
    ]
    vector = DLBVectorEnv(5, scenario=scenarios, autoreset_mode="SameStep")
    assert vector.single_action_space.shape == (7, 7)
    assert_rows_are_singles(vector, [DLBEnv(scenario) for scenario in scenarios], EPISODES, seed=2)


def test_rows_of_a_family_are_singles_over_two_episodes() -> None:
    keywords: dict[str, Any] = {
        "family": "appendix_b",
        "changes": {"horizon_s": 1.2, "warmup_s": 1.0, "disturbances": [{"kind": "outage"}]},
    }
    vector = DLBVectorEnv(4, autoreset_mode="SameStep", **keywords)
    assert_rows_are_singles(vector, [DLBEnv(**keywords) for _ in range(4)], EPISODES, seed=0)


def test_rows_that_start_in_mid_episode_disturb_nobody() -> None:
    """The new row needs longer probe rings, more servers and a larger queue than the old one."""
    far = {"rtt_s": [[0.0, 0.6], [0.6, 0.0]]}
    small = ring(2, horizon_s=3.0, probe_interval_s=0.05, network=far)
    large = ring(2, horizon_s=3.0, server={"decode_engines": 5, "queue_limit": 60})
    large["network"] = {"rtt_s": [[0.0, 1.0], [1.0, 0.0]]}
    for cell in large["cells"]:
        cell["servers"] = 9
    task = Task(episode_source([small, large]), 2)
    env = DLBEnv(small)
    rng = np.random.default_rng(0)
    task.reset(np.array([True, False]), [0])
    env.reset(seed=0)
    for step in range(30):
        action = rng.random((2, 2)).astype(np.float32)
        observation, reward, *_ = env.step(action)
        if step == 10:
            task.reset(np.array([False, True]), [1])
        routing = to_routing(np.stack([action, action]), "weights", task.admissible)
        moved = task.step_routing(routing, np.array([True, step >= 10]))
        assert moved.observation[0].tobytes() == observation.tobytes(), step
        assert moved.reward[0] == reward


@pytest.mark.parametrize("name", ["flow-gradient", "disc-latency", "random"])
def test_a_policy_in_a_batch_drives_its_rows_as_it_drives_singles(name: str) -> None:
    changes = short("outage", 20)
    source = episode_source("outage", changes=changes)

    def run(rows: int, seed: int) -> list[NDArray[np.float32]]:
        task = Task(source, rows)
        policy = baselines.make(name)
        policy.reset(task.spec, rows, seed)
        observations = [task.reset(seeds=[seed + r for r in range(rows)])]
        for _ in range(20):
            observations.append(task.step(policy.act(observations[-1])).observation)
        return observations

    together = run(3, 8)
    for row in range(3):
        for one, two in zip(together, run(1, 8 + row), strict=True):
            assert one[row].tobytes() == two[0].tobytes()


def test_tiny_buffers_that_grow_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple[bytes, dict[str, bytes], int]:
        task = Task(episode_source("burst", changes=short("burst", 10)), 2, log=True)
        observations = [task.reset(seeds=[1, 2])]
        routing = np.where(task.admissible, 1 / 6, 0.0)
        observations.extend(task.step_routing(routing).observation for _ in range(10))
        log = {name: column.tobytes() for name, column in task.simulator.request_log(1).items()}
        return np.array(observations).tobytes(), log, len(task.simulator.request_log(1)["cell"])

    large = run()
    assert large[2] > 300
    monkeypatch.setattr(simulator, "FIRST_POOL", 1)
    monkeypatch.setattr(simulator, "FIRST_WIRE", 1)
    assert run() == large


def test_a_simulator_holds_no_scenario_larger_than_itself() -> None:
    sim = Simulator(1, 2, 2)
    with pytest.raises(ValueError, match=r"'ring-3' has 3 roots and 3 cells; .* at most 2 and 2"):
        sim.reset_row(0, load_scenario(ring(3)), 0, 0)
    for sizes in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="= 0 must be at least 1"):
            Simulator(*sizes)
