"""Bad input gets a named error, and the environment goes on as if it had not been given."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dlb_gym.envs import DLBEnv, DLBVectorEnv
from tests.short_episodes import STEPS, drawn_actions, ring, short

SHAPE = (6, 6)


def wrong(kind: str, shape: tuple[int, ...]) -> Any:
    action = np.full(shape, 0.5, np.float32)
    if kind == "shape":
        return action[..., :-1]
    action[..., 2, 3] = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}[kind]
    return action


class Unusable:
    """Nothing that a number can be made of."""


MESSAGES = {
    "shape": r"action has shape \(\d, 6, 5\); it must be \(\d, 6, 6\)",
    "nan": "action of replication 0, root 2, cell 3 is nan; every entry must be a finite number",
    "inf": "root 2, cell 3 is inf",
    "-inf": "root 2, cell 3 is -inf",
}


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("encoding", ["weights", "logits"])
def test_a_wrong_action_changes_nothing_in_a_single_environment(kind: str, encoding: Any) -> None:
    env, twin = (DLBEnv(changes=short(), action=encoding) for _ in range(2))
    env.reset(seed=0)
    twin.reset(seed=0)
    for action in drawn_actions(env.action_space, STEPS):
        with pytest.raises(ValueError, match=MESSAGES[kind]):
            env.step(wrong(kind, SHAPE))
        one, two = env.step(action), twin.step(action)
        assert one[0].tobytes() == two[0].tobytes()
        assert one[1:4] == two[1:4]


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_wrong_action_changes_nothing_in_a_batch(kind: str, mode: str) -> None:
    env, twin = (DLBVectorEnv(2, changes=short(), autoreset_mode=mode) for _ in range(2))
    env.reset(seed=0)
    twin.reset(seed=0)
    for action in drawn_actions(env.action_space, STEPS):
        with pytest.raises(ValueError, match=MESSAGES[kind]):
            env.step(wrong(kind, (2, *SHAPE)))
        for one, two in zip(env.step(action)[:4], twin.step(action)[:4], strict=True):
            assert one.tobytes() == two.tobytes()


def test_a_nan_is_refused_in_a_running_row_beside_an_ended_one() -> None:
    scenarios = [{"base": "global_six", "name": str(n), **short(steps=n)} for n in (1, 3)]
    env, twin = (DLBVectorEnv(2, scenario=scenarios) for _ in range(2))
    action = drawn_actions(env.action_space, 1)[0]
    for each in (env, twin):
        each.reset(seed=0)
        each.step(action)
    bad = action.copy()
    bad[1, 2, 3] = np.nan
    with pytest.raises(ValueError, match="replication 1, root 2, cell 3 is nan"):
        env.step(bad)
    ignored = action.copy()
    ignored[0] = np.nan
    for one, two in zip(env.step(ignored)[:4], twin.step(action)[:4], strict=True):
        assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize(
    "action",
    [
        [["a"] * 6] * 6,
        [[0.5] * 6] * 5 + [[0.5]],
        np.full(SHAPE, 1j),
        np.zeros(SHAPE, "datetime64[s]"),
        [[Unusable()] * 6] * 6,
        [[10**400] * 6] * 6,
        {"routing": 1.0},
        "weights",
    ],
)
def test_what_holds_no_real_numbers_is_no_action(action: Any) -> None:
    """Imaginary parts among them, which numpy would drop with a warning."""
    single, batch = DLBEnv(changes=short()), DLBVectorEnv(1, changes=short())
    single.reset(seed=0)
    batch.reset(seed=0)
    for step in (lambda: single.step(action), lambda: batch.step([action])):
        with pytest.raises(ValueError, match="action holds no real numbers"):
            step()


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint64, bool, object])
def test_an_action_of_another_type_is_the_same_action(dtype: Any) -> None:
    env, twin = DLBEnv(changes=short()), DLBEnv(changes=short())
    env.reset(seed=0)
    twin.reset(seed=0)
    action = np.eye(6, dtype=np.float32)
    assert env.step(action.astype(dtype))[0].tobytes() == twin.step(action)[0].tobytes()


def test_a_seed_beyond_what_is_kept_is_refused() -> None:
    env, batch = DLBEnv(changes=short()), DLBVectorEnv(2, changes=short())
    for reset in (lambda: env.reset(seed=2**63), lambda: batch.reset(seed=[0, 2**63])):
        with pytest.raises(ValueError, match="seed = '9223372036854775808' must be at most"):
            reset()
    for seed in ([0, 1.5], ["0", 1]):
        with pytest.raises(ValueError, match=r"seed = '(1.5|0)' must be a whole number"):
            batch.reset(seed=seed)
    env.reset(seed=2**63 - 1)


def test_a_wrong_seed_changes_nothing() -> None:
    env, twin = DLBEnv(changes=short()), DLBEnv(changes=short())
    action = drawn_actions(env.action_space, 1)[0]
    for each in (env, twin):
        each.reset(seed=0)
    with pytest.raises(gym.error.Error, match=r"[Ss]eed must be .*(-1|greater|non-negative)"):
        env.reset(seed=-1)
    assert env.step(action)[0].tobytes() == twin.step(action)[0].tobytes()
    assert env.reset()[0].tobytes() == twin.reset()[0].tobytes()


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        ([1], "seed lists 1 values for num_envs = 2; one a row"),
        ([4, -1], "seed = -1 is negative; seeds must be at least 0"),
        (-5, "seed = -5 is negative"),
    ],
)
def test_wrong_seeds_of_a_batch_change_nothing(seed: Any, message: str) -> None:
    env, twin = (DLBVectorEnv(2, changes=short()) for _ in range(2))
    action = drawn_actions(env.action_space, 1)[0]
    for each in (env, twin):
        each.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.reset(seed=seed)
    for one, two in zip(env.step(action)[:4], twin.step(action)[:4], strict=True):
        assert one.tobytes() == two.tobytes()
    assert env.reset()[0].tobytes() == twin.reset()[0].tobytes()


@pytest.mark.parametrize("face", ["single", "vector"])
@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"scenario": ring(2) | {"cells": []}}, "'cells'"),
        ({"scenario": "global_sex"}, "'global_sex' is not shipped; nearest.*'global_six'"),
        ({"changes": {"demand.utilization": 1}}, "'demand.utilization' is unknown.*'utilisation'"),
        (
            {"changes": {"roots.1.reachable": []}},
            "reachable is empty: a root needs at least one arc",
        ),
        ({"scenario": []}, "scenario is an empty list; name at least one scenario"),
        (
            {"scenario": ["global_six", "hot", "burst"]},
            r"scenario lists 3 scenarios for num_envs = [12], .* list at most one for every row",
        ),
        (
            {"changes": {"probe_interval_s": 1e-7}},
            r"probe_interval_s = 1e-07 keeps 1\.\d\de\+06 reports of a cell under way",
        ),
        ({"changes": {"control_interval_s": 1e-9}}, "control_interval_s = 1e-09 makes 8e"),
        ({"family": "appendix_c"}, "family 'appendix_c' is unknown; nearest"),
        ({"family": "appendix_b", "scenario": "hot"}, "leave out"),
        ({"action": "weight"}, "action = 'weight' is unknown; choose one of weights, logits"),
        ({"reward": "latencies"}, "reward = 'latencies' is unknown; choose one of latency"),
        ({"reward": "nowhere:f"}, "'nowhere:f' cannot be imported"),
        ({"max_episode_steps": 0}, "max_episode_steps = 0 must be at least 1"),
        ({"max_episode_steps": "5"}, "max_episode_steps = '5' must be a whole number"),
        ({"max_episode_steps": 1.5}, "max_episode_steps = '1.5' must be a whole number"),
        ({"max_cells": 7.0}, "max_cells = '7.0' must be a whole number"),
        ({"max_cells": True}, "max_cells = 'True' must be a whole number"),
        ({"scenario": 5}, "scenario = '5' must be a name, the path"),
        ({"scenario": [["hot"]]}, "must be a name, the path"),
        ({"changes": 5}, "changes = '5' must map dotted keys to values"),
        ({"changes": {"demand": {"utilisaton": 1.0}}}, "'demand.utilisaton' is unknown; nearest"),
        ({"changes": {"cells.0.servers": "8"}}, "'cells.0.servers': Input should be a valid int"),
        ({"changes": {"network.rtt_s": [[-0.1] * 6] * 6}}, "'network.rtt_s.0.0'.*greater than or"),
        ({"family": ["appendix_b"]}, "family .*appendix_b.* is unknown.*; families: appendix_b"),
        ({"action": ["weights"]}, "is unknown; choose one of weights, logits"),
        ({"reward": ["latency"]}, "reward = .* must be text"),
        ({"trace": 5}, "a trace must be the path of a file"),
        ({"rtt_csv": 5}, "an RTT file must be the path of a file"),
        ({"render_mode": "human"}, "render_mode = 'human' is not supported"),
        ({"changes": {"horizon_s": 0.55}}, "horizon_s = 0.55 is no whole number of control"),
    ],
)
def test_a_wrong_keyword_is_named_at_construction(
    face: str, keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DLBEnv(**keywords) if face == "single" else DLBVectorEnv(2, **keywords)


def test_a_batch_without_rows_or_of_an_unknown_mode_is_refused() -> None:
    for rows in (0, -1):
        with pytest.raises(ValueError, match=f"num_envs = {rows} must be at least 1"):
            gym.make_vec("DLB-v0", num_envs=rows)
    with pytest.raises(
        ValueError, match="autoreset_mode = 'SAME' is unknown; choose one of 'NextS"
    ):
        DLBVectorEnv(2, autoreset_mode="SAME")


@pytest.mark.parametrize("max_cells", [4, 0, -3])
def test_padding_smaller_than_the_scenario_is_refused(max_cells: int) -> None:
    with pytest.raises(ValueError, match=f"max_cells = {max_cells} is too small for 5 roots and 5"):
        DLBEnv(ring(5), max_cells=max_cells)


def test_a_family_outgrown_by_its_changes_is_refused_by_name() -> None:
    big = ring(11)
    changes = {key: big[key] for key in ("cells", "roots", "network")}
    env = DLBEnv(family="appendix_b", changes=changes)
    with pytest.raises(ValueError, match="has 11 roots and 11 cells; this batch holds at most 10"):
        env.reset(seed=0)


def test_stepping_without_a_running_episode_says_what_to_do() -> None:
    env, batch = DLBEnv(changes=short(steps=1)), DLBVectorEnv(2, changes=short(steps=1))
    action = drawn_actions(env.action_space, 1)[0]
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(action)
    with pytest.raises(RuntimeError, match=r"rows \[0, 1\] have no running episode; call reset"):
        batch.step(np.stack([action, action]))
    env.reset(seed=0)
    env.step(action)
    with pytest.raises(RuntimeError, match="after the end; call reset first"):
        env.step(action)
