"""The same bytes in every process, compiled or not, and from a snapshot."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dlb_gym.envs import DLBEnv
from tests.parity.digest_run import digests
from tests.short_episodes import drawn_actions, short

ROOT = Path(__file__).resolve().parents[2]


def elsewhere(*arguments: str, **variables: str) -> dict[str, str]:
    """The digests that a fresh process prints."""
    command = [sys.executable, "-m", "tests.parity.digest_run", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_fresh_process_with_another_hash_seed_gives_the_same_bytes() -> None:
    expected = digests()
    assert digests() == expected
    assert elsewhere(PYTHONHASHSEED="123") == expected


def test_kernels_as_plain_python_give_the_same_bytes() -> None:
    compiled = elsewhere("quick", NUMBA_DISABLE_JIT="0")
    assert elsewhere("quick", NUMBA_DISABLE_JIT="1") == compiled


@pytest.mark.parametrize("at", [0, 7, 19])
def test_a_run_resumed_from_a_snapshot_is_the_uninterrupted_one(at: int) -> None:
    env = DLBEnv("outage", changes=short("outage", 20))
    actions = drawn_actions(env.action_space, 20)
    env.reset(seed=3)
    snapshot, observations = None, []
    for step, action in enumerate(actions):
        if step == at:
            snapshot = copy.deepcopy(env)
        observations.append(env.step(action)[0])
    assert snapshot is not None
    for step in range(at, 20):
        assert snapshot.step(actions[step])[0].tobytes() == observations[step].tobytes()
    np.testing.assert_array_equal(snapshot.reset()[0], env.reset()[0])
