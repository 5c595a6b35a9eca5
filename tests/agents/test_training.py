from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.checkpoints import CheckpointError, latest_checkpoint, read_model, read_state
from agents.loading import TrainedPolicy
from agents.networks import ArcNetwork
from agents.shared_requests import SharedRequests
from agents.training import Training, train
from dlb_gym.actions import to_routing
from dlb_gym.episodes import FixedScenarios
from dlb_gym.observation import FIELD_NAMES, Observation
from dlb_gym.policy import TaskSpec
from dlb_gym.sb3 import DLBVecEnv
from dlb_gym.scenario_source import override
from dlb_gym.task import Task
from tests.scenarios_by_hand import two_cells

SCENARIO = override(two_cells(), {"warmup_s": 1.0, "horizon_s": 2.0})


def tiny(**changes: Any) -> Training:
    settings: dict[str, Any] = {
        "environment": {"scenario": SCENARIO.model_dump(mode="json")},
        "steps": 96,
        "num_envs": 4,
        "copies": 2,
        "rollout_steps": 8,
        "batch_size": 16,
        "epochs": 1,
        "checkpoint_steps": 32,
    }
    return Training(**(settings | changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    folder.mkdir()
    train(tiny(), folder)
    return folder


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "tiny"))


def observations(rows: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    task = Task(FixedScenarios([SCENARIO]), rows)
    return task.reset(seeds=list(range(rows)))


def test_training_takes_its_steps_and_keeps_whole_checkpoints(run: Path) -> None:
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == ["step-000000032", "step-000000064", "step-000000096"]
    last = latest_checkpoint(run)
    assert last is not None
    state = read_state(last)
    assert (state.steps, state.starts, state.num_roots, state.num_cells) == (96, 1, 2, 2)
    assert [steps for steps, _ in state.curve] == [32, 64, 96]
    assert any((run / "tensorboard").iterdir())


def test_training_goes_on_from_the_last_checkpoint(copied: Path) -> None:
    (copied / "checkpoints" / ".step-000000128.1.part").mkdir()  # what a kill leaves
    seen: list[int] = []
    last = train(tiny(steps=160), copied, lambda steps, reward: seen.append(steps))
    state = read_state(last)
    assert seen == [128, 160]
    assert (state.steps, state.starts) == (160, 2)
    assert [steps for steps, _ in state.curve] == [32, 64, 96, 128, 160]
    assert not list((copied / "checkpoints").glob(".*"))


def test_the_optimiser_goes_on_where_it_was(copied: Path) -> None:
    last = latest_checkpoint(copied)
    assert last is not None
    before = read_model(last).policy.optimizer.state_dict()["state"]
    after = read_model(train(tiny(steps=128), copied)).policy.optimizer.state_dict()["state"]
    assert before[0]["step"] == 6  # 3 rollouts x 2 batches
    assert after[0]["step"] == 8


def test_a_finished_training_is_not_repeated(copied: Path) -> None:
    seen: list[int] = []
    assert train(tiny(), copied, lambda steps, reward: seen.append(steps)).name.endswith("96")
    assert seen == []


def test_the_trained_policy_is_a_local_policy(run: Path) -> None:
    policy = TrainedPolicy(str(run))
    assert (policy.name, policy.information) == ("tiny", "local")
    task = Task(FixedScenarios([SCENARIO]), 2)
    seen = task.reset(seeds=[0, 1])
    policy.reset(task.spec, 2, 0)
    routing = policy.act(seen).routing
    task.step(policy.act(seen))  # refuses what is no routing matrix
    policy.reset(task.spec, 1, 0)
    changed = seen[:1].copy()
    changed.reshape(2, 2, -1)[1] *= 0.9
    other = policy.act(changed).routing
    assert routing is not None
    assert other is not None
    np.testing.assert_allclose(other[0, 0], routing[0, 0], atol=1e-6)
    assert np.abs(other[0, 1] - routing[0, 1]).max() > 1e-6


def test_the_mlp_trains_and_acts_with_its_statistics(tmp_path: Path) -> None:
    train(tiny(network="mlp", steps=32), tmp_path)
    policy = TrainedPolicy(str(tmp_path), name="mlp")
    spec = Task(FixedScenarios([SCENARIO]), 3).spec
    policy.reset(spec, 3, 0)
    routing = policy.act(observations(3)).routing
    assert policy.information == "central"
    assert routing is not None
    np.testing.assert_allclose(routing.sum(axis=-1), 1.0)


def test_an_mlp_on_other_sizes_is_refused_with_both_named(tmp_path: Path) -> None:
    train(tiny(network="mlp", steps=32), tmp_path)
    spec = Task(FixedScenarios([SCENARIO]), 1, max_cells=5).spec
    with pytest.raises(CheckpointError, match=r"2 roots and 2 cells.*5 roots and 5 cells"):
        TrainedPolicy(str(tmp_path), name="mlp").reset(spec, 1, 0)


def test_the_shared_network_decides_as_sb3_does_where_it_was_trained(run: Path) -> None:
    policy = TrainedPolicy(str(run))
    task = Task(FixedScenarios([SCENARIO]), 3)
    seen = task.reset(seeds=[0, 1, 2])
    policy.reset(task.spec, 3, 0)
    last = latest_checkpoint(run)
    assert last is not None
    action, _ = read_model(last).predict(seen, deterministic=True)
    arcs = np.ones((3, 2, 2), dtype=np.bool_)
    routing = policy.act(seen).routing
    assert routing is not None
    np.testing.assert_allclose(routing, to_routing(action, "logits", arcs), rtol=1e-6)


def test_the_shared_network_decides_the_same_on_ten_padded_cells(run: Path) -> None:
    policy = TrainedPolicy(str(run))
    routings = []
    for max_cells in (2, 10):
        task = Task(FixedScenarios([SCENARIO]), 2, max_cells=max_cells)
        seen = task.reset(seeds=[0, 1])
        policy.reset(task.spec, 2, 0)
        routing = policy.act(seen).routing
        assert routing is not None
        routings.append(routing)
        task.step(policy.act(seen))  # refuses what is no routing matrix
    small, padded = routings
    assert padded.shape == (2, 10, 10)
    np.testing.assert_allclose(padded[:, :2, :2], small, rtol=1e-5)
    assert padded.sum() == pytest.approx(small.sum())


def test_the_shared_network_relabels_its_answer_on_other_sizes(run: Path) -> None:
    policy = TrainedPolicy(str(run))
    rng = np.random.default_rng(0)
    cube = rng.uniform(0.0, 1.0, (1, 3, 5, len(FIELD_NAMES))).astype(np.float32)
    cube[..., FIELD_NAMES.index("admissible")] = 1.0
    policy.reset(TaskSpec(3, 5, Observation(3, 5)), 1, 0)
    order = [4, 0, 2, 1, 3]
    routing = policy.act(cube.reshape(1, -1)).routing
    relabelled = policy.act(cube[:, :, order].reshape(1, -1)).routing
    assert routing is not None
    assert relabelled is not None
    np.testing.assert_allclose(relabelled, routing[:, :, order], rtol=1e-4)
    assert np.ptp(routing) > 0.0


@pytest.mark.parametrize("file", ["model.zip", "normalisation.pkl", "state.json"])
def test_a_missing_or_damaged_file_is_named(copied: Path, file: str) -> None:
    last = latest_checkpoint(copied)
    assert last is not None
    (last / file).write_bytes(b"not what it should be")
    with pytest.raises(CheckpointError, match=rf"{file}.*cannot be read"):
        TrainedPolicy(str(copied))
    (last / file).unlink()
    with pytest.raises(CheckpointError, match=rf"lacks {file}"):
        TrainedPolicy(str(copied))
    with pytest.raises(CheckpointError, match=rf"lacks {file}"):
        train(tiny(steps=128), copied)


def test_a_cut_model_file_is_named(copied: Path) -> None:
    last = latest_checkpoint(copied)
    assert last is not None
    content = (last / "model.zip").read_bytes()
    (last / "model.zip").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"model\.zip.*cannot be read"):
        TrainedPolicy(str(copied))


def test_a_state_with_unknown_content_is_named(copied: Path) -> None:
    last = latest_checkpoint(copied)
    assert last is not None
    (last / "state.json").write_text(json.dumps({"curve": [], "steps": 1}))
    with pytest.raises(CheckpointError, match=r"state\.json"):
        TrainedPolicy(str(copied))


def test_a_folder_without_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no trained policy"):
        TrainedPolicy(str(tmp_path))
    with pytest.raises(CheckpointError, match="holds no trained policy"):
        TrainedPolicy(str(tmp_path / "nowhere"))


def test_an_untrained_network_splits_by_capacity() -> None:
    network = ArcNetwork(2, 2)
    network.start_at_capacity()
    seen = torch.as_tensor(observations(1))
    logits = 8.0 * network.forward_actor(seen).reshape(2, 2)
    expected = torch.tensor([[80.0, 32.0], [80.0, 32.0]]) / 112.0
    torch.testing.assert_close(torch.softmax(logits, dim=-1), expected, atol=1e-4, rtol=0.0)


def test_rows_of_the_action_read_their_own_row_and_cells_may_swap_places() -> None:
    torch.manual_seed(0)
    network = ArcNetwork(3, 4)
    cube = torch.rand(1, 3, 4, len(FIELD_NAMES))
    cube[..., FIELD_NAMES.index("admissible")] = 1.0
    action = network.forward_actor(cube.flatten(1)).reshape(1, 3, 4)
    other = cube.clone()
    other[:, 2] *= 0.5
    changed = network.forward_actor(other.flatten(1)).reshape(1, 3, 4)
    torch.testing.assert_close(changed[:, :2], action[:, :2])
    assert not torch.allclose(changed[:, 2], action[:, 2])
    order = [2, 0, 3, 1]
    swapped = network.forward_actor(cube[:, :, order].flatten(1)).reshape(1, 3, 4)
    torch.testing.assert_close(swapped, action[:, :, order])


def test_padding_changes_no_action() -> None:
    torch.manual_seed(0)
    small, large = ArcNetwork(2, 2), ArcNetwork(4, 4)
    large.load_state_dict(small.state_dict())
    cube = torch.as_tensor(observations(1)).reshape(1, 2, 2, -1)
    padded = torch.zeros(1, 4, 4, cube.shape[-1])
    padded[:, :2, :2] = cube
    action = large.forward_actor(padded.flatten(1)).reshape(4, 4)
    torch.testing.assert_close(action[:2, :2].flatten(), small.forward_actor(cube.flatten(1))[0])
    assert Observation(2, 2).size == cube.numel()
    torch.testing.assert_close(
        large.forward_critic(padded.flatten(1)), small.forward_critic(cube.flatten(1))
    )


def test_copies_meet_the_same_requests_and_equal_actions_give_no_reward() -> None:
    env = SharedRequests(lambda: DLBVecEnv(2, seed=5, scenario=SCENARIO), copies=3)
    alone = DLBVecEnv(2, seed=5, scenario=SCENARIO)
    first, expected = env.reset(), alone.reset()
    np.testing.assert_array_equal(first, np.concatenate([expected] * 3))
    action = np.zeros((2, 2, 2), dtype=np.float32)
    _, rewards, _, _ = env.step(np.concatenate([action] * 3))
    _, reward, _, _ = alone.step(action)
    np.testing.assert_allclose(rewards, 0.0, atol=1e-6)
    assert env.mean_reward == pytest.approx(float(reward.mean()))


def test_methods_are_called_on_the_copy_that_holds_the_row() -> None:
    batches: list[DLBVecEnv] = []

    def make() -> DLBVecEnv:
        batches.append(DLBVecEnv(2, seed=len(batches), scenario=SCENARIO))
        return batches[-1]

    env = SharedRequests(make, copies=3)
    for k, batch in enumerate(batches):
        batch.tell = lambda word, k=k: f"{word} {k}"  # type: ignore[attr-defined]
        batch.number = k  # type: ignore[attr-defined]
    every = ["copy 0", "copy 0", "copy 1", "copy 1", "copy 2", "copy 2"]
    assert env.env_method("tell", "copy") == every
    assert env.env_method("tell", "copy", indices=[4, 1]) == ["copy 2", "copy 0"]
    assert env.env_method("tell", word="row", indices=-1) == ["row 2"]
    assert env.get_attr("number", indices=[5, 2]) == [2, 1]
    with pytest.raises(IndexError):
        env.env_method("tell", "copy", indices=6)


def test_rewards_of_copies_are_those_beyond_their_mean() -> None:
    env = SharedRequests(lambda: DLBVecEnv(1, seed=5, scenario=SCENARIO), copies=2)
    singles = [DLBVecEnv(1, seed=5, scenario=SCENARIO) for _ in range(2)]
    actions = np.array([[[1.0, -1.0]] * 2, [[-1.0, 1.0]] * 2], dtype=np.float32)
    env.reset()
    for single in singles:
        single.reset()
    for _ in range(10):
        rewards = env.step(actions)[1]
        alone = [s.step(a[None])[1][0] for s, a in zip(singles, actions, strict=True)]
        np.testing.assert_allclose(rewards, np.array(alone) - np.mean(alone), atol=1e-5)
    assert abs(alone[0] - alone[1]) > 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "cnn"}, "network = 'cnn' is unknown"),
        ({"steps": 0}, "steps = 0"),
        ({"num_envs": 0}, "num_envs = 0"),
        ({"num_envs": 6, "copies": 4}, "copies = 4 must divide num_envs = 6"),
        ({"seed": 500_000}, "kept for evaluation"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_a_training_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**changes)
