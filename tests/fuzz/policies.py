"""A learned policy as it is saved, to be damaged: its description, and its tensors."""

from __future__ import annotations

import hashlib
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from agents.networks import ArcActor
from agents.saved_policy import DESCRIPTION, MEAN, TENSORS, VARIANCE, write_policy
from dlb_gym.actions import LOGIT_SCALE
from dlb_gym.observation import FIELD_NAMES

ROOTS, CELLS, WIDTH = 2, 2, 4


@cache
def _saved() -> tuple[bytes, bytes]:
    """Both files of a small network."""
    torch.manual_seed(0)
    tensors = {
        name: each.numpy() for name, each in ArcActor(ROOTS, CELLS, WIDTH).state_dict().items()
    }
    size = ROOTS * CELLS * len(FIELD_NAMES)
    tensors |= {
        MEAN: torch.zeros(size, dtype=torch.float64).numpy(),
        VARIANCE: torch.ones(size, dtype=torch.float64).numpy(),
    }
    content: dict[str, Any] = {
        "network": {"kind": "arc", "width": WIDTH},
        "observation": {"fields": FIELD_NAMES, "num_roots": ROOTS, "num_cells": CELLS},
        "action": {"encoding": "logits", "scale": LOGIT_SCALE},
        "normalisation": {"epsilon": 1e-8, "clip": 10.0},
        "trained_on": {
            "scenarios": ("small",), "family": None, "reward": "latency", "seed": 0, "steps": 1,
        },
        "versions": {"torch": "2"},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        write_policy(Path(folder), content, tensors)
        return (Path(folder) / DESCRIPTION).read_bytes(), (Path(folder) / TENSORS).read_bytes()


def description() -> bytes:
    """A valid description."""
    return _saved()[0]


def weights() -> bytes:
    """The tensors that belong to it."""
    return _saved()[1]


def put_policy(folder: Path, described: bytes | None = None, tensors: bytes | None = None) -> None:
    """Writes both files, either of them replaced; the description names the hash of the tensors."""
    folder.mkdir(exist_ok=True)
    data = weights() if tensors is None else tensors
    (folder / TENSORS).write_bytes(data)
    (folder / DESCRIPTION).write_bytes(with_hash(data) if described is None else described)


def with_hash(tensors: bytes) -> bytes:
    """The description of these tensors."""
    content = json.loads(description())
    content["tensors_sha256"] = hashlib.sha256(tensors).hexdigest()
    return json.dumps(content).encode()
