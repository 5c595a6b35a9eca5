"""What a root router may know, as one float32 array.

`FIELDS` is the one place where fields are declared: order, bounds, meaning. A field has a value for
every (root, cell); times are in zero-load times Z (the fleet's mean serving latency when empty),
counts per server, and whatever exceeds a bound saturates there. Row i is made of the probes that
root i holds and of its own requests alone. Where there is no arc, and in padded rows and columns,
all fields are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dlb_gym import engine
from dlb_gym.views import View

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Field:
    """One number for every (root, cell); it lies in [0, high]."""

    name: str
    high: float
    meaning: str


FIELDS = (
    Field("admissible", 1.0, "1 where the root may send to the cell"),
    Field("rtt", 100.0, "round trip 2 tau, in Z"),
    Field("probe_age", 100.0, "time since the probe held left the cell, in Z"),
    Field("rif", 1000.0, "requests in flight per server, by the probe held"),
    Field("servers", 1.0, "live servers by the probe held, over the fleet's at the start"),
    Field("request_weight", 1.0, "1 / live servers by the probe held: what a request adds to rif"),
    Field("serving_latency", 1000.0, "latency model at that RIF, in Z"),
    Field("marginal_latency", 10_000.0, "1 / mu'(N) at that RIF, in Z"),
    Field("model_alpha", 100.0, "latency of an empty server, in Z"),
    Field("model_beta", 100.0, "latency per request per server past the knee, in Z"),
    Field("model_knee", 1000.0, "requests per server at the knee"),
    Field("model_smoothing", 1000.0, "width of the knee, requests per server"),
    Field("error_rate", 1.0, "the leaf's exponential mean of errors, by the probe held"),
    Field("aversion", 1.0, "probability of avoiding the cell for its errors"),
    Field("outstanding", 1000.0, "own requests sent and not answered, per server"),
    Field("unseen", 1000.0, "own requests sent and not received by the probe held, per server"),
    Field("routing", 1.0, "share of the own requests of the last interval"),
    Field("arrival_load", 10.0, "own arrival rate (1 s mean) over the fleet's nominal rate"),
    Field("capacity_load", 1.0, "nominal rate of the live servers over the fleet's at the start"),
    Field("zero_load_time_s", 3600.0, "Z in seconds"),
    Field("control_interval", 1000.0, "control interval, in Z"),
    Field("prefill_backlog", 1e6, "tokens to prefill per server, if telemetry.backlogs"),
    Field("decode_backlog", 1e6, "tokens to decode per server, if telemetry.backlogs"),
    Field("tail_alpha", 100.0, "95th percentile of the latency of an empty server, in Z"),
    Field("tail_beta", 100.0, "what a request per server past the tail's knee adds to it, in Z"),
    Field("tail_knee", 1000.0, "requests per server at the tail's knee"),
    Field("tail_smoothing", 1000.0, "width of the tail's knee, requests per server"),
)
FIELD_NAMES = tuple(field.name for field in FIELDS)
_HIGH = np.array([field.high for field in FIELDS])
_INDEX = {name: index for index, name in enumerate(FIELD_NAMES)}


class Observation:
    """Encodes views and decodes observation arrays of given sizes."""

    def __init__(self, num_roots: int, num_cells: int) -> None:
        self.num_roots = num_roots
        self.num_cells = num_cells

    @property
    def size(self) -> int:
        """Length of an observation."""
        return self.num_roots * self.num_cells * len(FIELDS)

    @property
    def space(self) -> gym.spaces.Box:
        """Box of shape (roots * cells * fields,), float32."""
        high = np.tile(_HIGH.astype(np.float32), self.num_roots * self.num_cells)
        return gym.spaces.Box(np.zeros_like(high), high, dtype=np.float32)

    def decode(self, observation: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Named fields of an observation (..., size), each a view of shape (..., R, C)."""
        shape = (*observation.shape[:-1], self.num_roots, self.num_cells, len(FIELDS))
        cube = observation.reshape(shape)
        return {name: cube[..., index] for name, index in _INDEX.items()}

    def pack(self, fields: dict[str, FloatArray]) -> NDArray[np.float32]:
        """Observation (n, size) of named fields (n, R, C); saturates at the bounds.

        Raises:
            ValueError: A field is missing or unknown, or not finite.
        """
        if set(fields) != set(FIELD_NAMES):
            wrong = sorted(set(fields) ^ set(FIELD_NAMES))
            raise ValueError(f"fields must be exactly FIELD_NAMES; missing or unknown: {wrong}")
        shape = (len(fields["admissible"]), self.num_roots, self.num_cells, len(FIELDS))
        cube = np.empty(shape, np.float32)
        for name, values in fields.items():
            index = _INDEX[name]
            cube[..., index] = np.clip(values, 0.0, _HIGH[index])
        if not np.isfinite(cube).all():
            raise ValueError(f"field {_bad_field(cube)!r} is not finite; make every entry finite")
        return cube.reshape(len(cube), self.size)

    def constants(self, view: View) -> NDArray[np.float32]:
        """The fields that do not change during an episode, (n, R, C, fields), others zero."""
        arcs = view.admissible
        unit_s = view.zero_load_time_s[:, None, None]
        tail = view.tail[:, None]
        cube = np.zeros((*arcs.shape, len(FIELDS)), np.float32)
        for name, values in {
            "admissible": arcs,
            "zero_load_time_s": unit_s,
            "control_interval": view.control_interval_s[:, None, None] / unit_s,
            "tail_alpha": tail[..., 0] / unit_s,
            "tail_beta": tail[..., 1] / unit_s,
            "tail_knee": tail[..., 2],
            "tail_smoothing": tail[..., 3],
        }.items():
            index = _INDEX[name]
            cube[..., index] = np.where(arcs, np.minimum(values, _HIGH[index]), 0.0)
        return cube

    def encode(self, view: View, constants: NDArray[np.float32]) -> NDArray[np.float32]:
        """Observation (n, size) of a view.

        Args:
            view: What roots know.
            constants: See `constants`, of the same episodes.
        """
        cube = constants.copy()
        if not engine.encode(view, _HIGH, cube):
            raise ValueError(f"observation field {_bad_field(cube)!r} is not finite; report this")
        return cube.reshape(len(cube), self.size)


def _bad_field(cube: NDArray[np.float32]) -> str:
    """Name of the first field that is not finite; saturation may have hidden an infinity."""
    bad = np.argwhere(~np.isfinite(cube))
    return FIELD_NAMES[int(bad[0][-1])] if len(bad) else "one that saturates"
