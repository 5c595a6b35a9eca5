"""The same bytes in every process, however started, compiled or not, and from a snapshot."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlb_gym.envs import DLBEnv
from tests.parity import worker_run
from tests.parity.digest_run import digests
from tests.short_episodes import drawn_actions, short

ROOT = Path(__file__).resolve().parents[2]


def printed(module: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """What a fresh process prints, by name."""
    command = [sys.executable, "-W", "error", "-m", f"tests.parity.{module}", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def elsewhere(*arguments: str, **variables: str) -> dict[str, str]:
    """The digests of the small run in a fresh process."""
    return printed("digest_run", *arguments, **variables)


def test_a_fresh_process_with_other_settings_gives_the_same_bytes() -> None:
    """Hash seed, Numba's and OpenMP's threads decide nothing."""
    expected = digests()
    assert digests() == expected
    threads = {"NUMBA_NUM_THREADS": "4", "NUMBA_THREADING_LAYER": "workqueue"}
    assert elsewhere(PYTHONHASHSEED="123", OMP_NUM_THREADS="4", **threads) == expected


def test_workers_give_the_same_bytes_however_they_are_started() -> None:
    """Each plays whole runs, and goes on with environments that were pickled in mid-episode."""
    shown = printed("worker_run")
    alone = shown.pop("alone")
    assert len({whole for whole, _ in alone}) == 3
    assert shown == dict.fromkeys(worker_run.METHODS, alone)


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
