from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.checkpoints import CheckpointError, read_model, read_state
from agents.networks import ArcNetwork
from agents.run_folders import checkpoints_of
from agents.shared_requests import SharedRequests
from agents.training import train
from dlb_gym.observation import FIELD_NAMES, Observation
from dlb_gym.sb3 import DLBVecEnv
from tests.agents.trained import SCENARIO, newest, observations, tiny
from tests.full_disk import room_for


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    folder.mkdir()
    train(tiny(), folder)
    return folder


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "tiny"))


def test_training_takes_its_steps_and_keeps_whole_checkpoints(run: Path) -> None:
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == ["step-000000032", "step-000000064", "step-000000096"]
    last = newest(run)
    state = read_state(last)
    assert (state.steps, state.starts) == (96, 1)
    assert [steps for steps, _ in state.curve] == [32, 64, 96]
    assert any((run / "tensorboard").iterdir())


def test_training_goes_on_from_the_last_checkpoint(copied: Path) -> None:
    (copied / "checkpoints" / ".dlb_gym-1.part").mkdir()  # what a kill leaves
    seen: list[int] = []
    last = train(tiny(steps=160), copied, lambda steps, reward: seen.append(steps))
    state = read_state(last)
    assert seen == [128, 160]
    assert (state.steps, state.starts) == (160, 2)
    assert [steps for steps, _ in state.curve] == [32, 64, 96, 128, 160]
    assert not list((copied / "checkpoints").glob(".*"))


def test_the_optimiser_goes_on_where_it_was(copied: Path) -> None:
    last = newest(copied)
    before = read_model(last).policy.optimizer.state_dict()["state"]
    after = read_model(train(tiny(steps=128), copied)).policy.optimizer.state_dict()["state"]
    assert before[0]["step"] == 6  # 3 rollouts x 2 batches
    assert after[0]["step"] == 8


def test_a_full_disk_keeps_the_checkpoints_before(copied: Path) -> None:
    """Room for 0 to 4 of the 5 files of the next one."""
    for room in range(5):
        with room_for(room), pytest.raises(OSError, match="No space left on device"):
            train(tiny(steps=128), copied)
        kept = sorted(path.name for path in (copied / "checkpoints").iterdir())
        assert kept == ["step-000000032", "step-000000064", "step-000000096"]
    assert read_state(train(tiny(steps=128), copied)).steps == 128


def test_a_finished_training_is_not_repeated(copied: Path) -> None:
    seen: list[int] = []
    assert train(tiny(), copied, lambda steps, reward: seen.append(steps)).name.endswith("96")
    assert seen == []


@pytest.mark.parametrize("file", ["model.zip", "normalisation.pkl", "state.json"])
def test_a_missing_or_damaged_file_is_named(copied: Path, file: str) -> None:
    last = newest(copied)
    content = (last / file).read_bytes()
    for damaged in (b"not what it should be", content[: len(content) // 2]):
        (last / file).write_bytes(damaged)
        with pytest.raises(
            CheckpointError, match=rf"checkpoint file .*{file}' cannot be read \(.*\); delete its"
        ):
            train(tiny(steps=128), copied)
    (last / file).unlink()
    with pytest.raises(
        CheckpointError, match=rf"checkpoint .* lacks {file}; delete its folder, the one before"
    ):
        train(tiny(steps=128), copied)


@pytest.mark.parametrize("content", [{"curve": [], "steps": 1}, {"curve": 1}, [], "x"])
def test_a_state_with_unknown_content_is_named(copied: Path, content: object) -> None:
    last = newest(copied)
    (last / "state.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"state\.json.*cannot be read"):
        train(tiny(steps=128), copied)


def test_the_newest_checkpoint_is_that_of_most_steps(tmp_path: Path) -> None:
    for name in ("step-999999999", "step-1000000000", "step-000000001", "step-x", "step-2"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-2000000000").write_text("a file")
    names = [path.name for path in checkpoints_of(tmp_path)]
    assert names == ["step-000000001", "step-999999999", "step-1000000000"]


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
        ({"steps": 0}, "^steps = 0 must be at least 1$"),
        ({"num_envs": 0}, "^num_envs = 0 must be at least 1$"),
        ({"copies": 0}, "^copies = 0 must be at least 1$"),
        ({"rollout_steps": 0}, "^rollout_steps = 0 must be at least 1$"),
        ({"batch_size": 0}, "^batch_size = 0 must be at least 1$"),
        ({"epochs": 0}, "^epochs = 0 must be at least 1$"),
        ({"checkpoint_steps": 0}, "^checkpoint_steps = 0 must be at least 1$"),
        ({"num_envs": 6, "copies": 4}, "copies = 4 must divide num_envs = 6"),
        ({"seed": 500_000}, "kept for evaluation"),
        ({"seed": -1}, "seed = -1 must be at least 0 and below 500000: seeds from 1000000 on are"),
    ],
)
def test_a_training_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**changes)


def test_a_training_started_too_often_for_its_seeds_is_refused() -> None:
    """Every start takes as many new seeds as there are rows; those from 10^6 on are kept."""
    training = tiny(seed=499_998, num_envs=2)
    last = (1_000_000 - 499_998) // 2 - 1
    training.make_env(last).close()
    with pytest.raises(ValueError, match=rf"started {last + 1} times; start it anew with --name"):
        training.make_env(last + 1)
