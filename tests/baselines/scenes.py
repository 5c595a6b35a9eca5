"""Observations made of named numbers, for hand-computed decisions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlb_gym.observation import Observation
from dlb_gym.policy import Policy, TaskSpec

# Alpha 1 up to a knee no test reaches: latency 1, one request served per request in flight.
DEFAULTS = {
    "admissible": 1.0,
    "rtt": 0.0,
    "probe_age": 0.0,
    "rif": 1.0,
    "servers": 0.5,
    "serving_latency": 1.0,
    "request_weight": 1.0,
    "marginal_latency": 1.0,
    "model_alpha": 1.0,
    "model_beta": 0.125,
    "model_knee": 7.0,
    "model_smoothing": 1 / 256,
    "error_rate": 0.0,
    "aversion": 0.0,
    "outstanding": 0.0,
    "unseen": 0.0,
    "routing": 0.5,
    "arrival_load": 0.25,
    "capacity_load": 0.5,
    "zero_load_time_s": 1.0,
    "control_interval": 0.25,
    "prefill_backlog": 0.0,
    "decode_backlog": 0.0,
    "tail_alpha": 2.0,
    "tail_beta": 0.25,
    "tail_knee": 7.0,
    "tail_smoothing": 1 / 256,
}


def start(policy: Policy, roots: int, cells: int, replications: int = 1, seed: int = 0) -> Policy:
    """The policy, reset for a task of this size."""
    policy.reset(TaskSpec(roots, cells, Observation(roots, cells)), replications, seed)
    return policy


def observe(roots: int, cells: int, replications: int = 1, **fields: object) -> NDArray[np.float32]:
    """An observation; fields are whatever broadcasts to (replications, roots, cells)."""
    shape = (replications, roots, cells)
    values = {
        name: np.broadcast_to(np.asarray(value, dtype=np.float64), shape)
        for name, value in (DEFAULTS | fields).items()
    }
    arcs = values["admissible"]
    return Observation(roots, cells).pack({name: f * arcs for name, f in values.items()})
