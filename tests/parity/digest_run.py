"""Digests of a small run: `python -m tests.parity.digest_run [quick|mechanisms]`.

Both words make the calibration tiny, so that the kernels can run as plain Python as well; the
second plays every mechanism, each in a row of its own and all together.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np

from dlb_gym import calibration
from dlb_gym.actions import ENCODINGS, to_routing
from dlb_gym.decision import Decision
from dlb_gym.episodes import episode_source
from dlb_gym.task import Task
from tests.mechanisms import MECHANISMS, scenario_with
from tests.short_episodes import ring

STEPS = 10


def scenarios() -> list[dict[str, Any]]:
    """Overload with errors and an outage; smooth dispatch and a burst."""
    outage = {"kind": "outage", "cells": ["cell-1"]}
    return [
        ring(3, horizon_s=1.0, demand={"utilisation": 1.3}, server={"queue_limit": 3},
             disturbances=[outage]),
        ring(2, horizon_s=1.0, dispatch="smooth", disturbances=[{"kind": "burst"}]),
    ]  # fmt: skip


def digests(played: list[Any] | None = None) -> dict[str, str]:
    """SHA-256 of observations, rewards and request logs of two episodes, a scenario a row."""
    played = played or scenarios()
    task = Task(episode_source(played), len(played), log=True)
    rng = np.random.default_rng(0)
    parts: dict[str, list[bytes]] = {"observations": [], "rewards": [], "log": []}
    for seeds in (range(1, len(played) + 1), None):
        parts["observations"].append(task.reset(seeds=seeds).tobytes())
        for step in range(STEPS):
            weights = np.where(task.admissible, rng.random(task.admissible.shape), 0.0)
            slope = np.full(task.admissible.shape, 0.25)
            if step % 3 == 2:
                moved = task.step(Decision(base=weights, slope=slope))
            else:
                encoding = ENCODINGS[step % 3]
                moved = task.step_routing(to_routing(weights, encoding, task.admissible))
            parts["observations"].append(moved.observation.tobytes())
            parts["rewards"].append(moved.reward.tobytes())
        task.drain()
        for row in range(len(played)):
            log = task.simulator.request_log(row)
            parts["log"].append(str(len(log["cell"])).encode())
            parts["log"].extend(log[name].tobytes() for name in sorted(log))
        parts["log"].append(json.dumps([task.summary(r) for r in range(len(played))]).encode())
    return {name: hashlib.sha256(b"".join(piece)).hexdigest() for name, piece in parts.items()}


if __name__ == "__main__":
    played = None
    if sys.argv[1:]:
        calibration.SERVERS, calibration.WINDOWS, calibration.WINDOW = 3, 3, 8.0
    if sys.argv[1:] == ["mechanisms"]:
        short = {"horizon_s": 0.5, "control_interval_s": 0.05, "warmup_s": 0.1}
        played = [scenario_with(name, 2, **short) for name in MECHANISMS]
    print(json.dumps(digests(played)))  # noqa: T201 - read by the parent process
