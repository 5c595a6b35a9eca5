"""dlb_gym: routing of requests in a geo-distributed serving fleet, under delayed information.

Importing it registers `DLB-v0` with Gymnasium. The public names below load what they need when
they are first used, so that the import itself is quick.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gymnasium

_HERE = Path(__file__).parent
if not _HERE.is_dir():  # its scenarios would be missing as well
    raise ImportError(
        f"dlb_gym is imported from an archive ({_HERE}), in which numba finds no sources to "
        "compile; install it as files"
    )

_HOMES = {
    "DLBEnv": "dlb_gym.envs",
    "DLBParallelEnv": "dlb_gym.pettingzoo",
    "DLBVecEnv": "dlb_gym.sb3",
    "DLBVectorEnv": "dlb_gym.envs",
    "Decision": "dlb_gym.decision",
    "Observation": "dlb_gym.observation",
    "Policy": "dlb_gym.policy",
    "Scenario": "dlb_gym.scenario",
    "TaskSpec": "dlb_gym.policy",
    "check_policy": "dlb_gym.policy_check",
    "load_scenario": "dlb_gym.scenario_source",
    "parallel_env": "dlb_gym.pettingzoo",
    "scenario_names": "dlb_gym.scenario_source",
}

# `from dlb_gym import *` must work without Stable-Baselines3 and PettingZoo, so their faces are
# left out.
__all__ = [
    "DLBEnv",
    "DLBVectorEnv",
    "Decision",
    "Observation",
    "Policy",
    "Scenario",
    "TaskSpec",
    "check_policy",
    "load_scenario",
    "scenario_names",
]

try:
    __version__ = version("dlb-gym")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0.0.0"


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dlb_gym' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "DLB-v0" not in gymnasium.registry:
    gymnasium.register(
        id="DLB-v0",
        entry_point="dlb_gym.envs:DLBEnv",
        vector_entry_point="dlb_gym.envs:DLBVectorEnv",
    )
