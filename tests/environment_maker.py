"""Makes an environment by its id, in a process that has imported nothing of this project."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym


class EnvironmentMaker:
    """A picklable `env_fn`; a plain id needs the import that registers it."""

    def __init__(self, name: str, **keywords: Any) -> None:
        self.name, self.keywords = name, keywords

    def __call__(self) -> gym.Env[Any, Any]:
        if ":" not in self.name:
            importlib.import_module("dlb_gym")
        return gym.make(self.name, **self.keywords)
