"""Scheduling hashes of sessions, from their ids.

A hash is a number in [0, 2^53), exact in float64. With a salt of the episode's own,

    x <- id xor salt;   twice: x <- x m mod 2^53 (m odd),  x <- x xor floor(x / 2^27)

is one-to-one, so sessions share a hash only where the scenario allows no more than `values` of
them: then it is x mod values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlb_gym.streams import Stream, random_stream

_BITS = 53
_MASK = np.uint64(2**_BITS - 1)
_SHIFT = np.uint64(27)
_MULTIPLIERS = (np.uint64(0x1B873593CC9E2D), np.uint64(0x17F4A7C15F39CD))


class SchedulingHash:
    """The hashes of one episode.

    Args:
        seed: Seed, >= 0.
        episode: Number of the episode since the seed was set, >= 0.
        values: Number of different hashes, None for one per session.
    """

    def __init__(self, seed: int, episode: int, values: int | None = None) -> None:
        salt = random_stream(seed, episode, Stream.SESSION_HASHES).integers(2**_BITS)
        self._salt = np.uint64(salt)
        self._values = values

    def __call__(self, session: NDArray[np.float64]) -> NDArray[np.float64]:
        """Hashes of session ids, whole numbers in [0, 2^53); -1, no session, stays -1."""
        x = self._mixed(session)
        if self._values is not None:
            x %= np.uint64(self._values)
        return np.where(session < 0, -1.0, x.astype(np.float64))

    def uniform(self, session: NDArray[np.float64]) -> NDArray[np.float64]:
        """A number in [0, 1) for each session id, whatever collisions there are."""
        return self._mixed(session) / 2.0**_BITS

    def _mixed(self, session: NDArray[np.float64]) -> NDArray[np.uint64]:
        x = np.maximum(session, 0.0).astype(np.uint64) ^ self._salt
        for multiplier in _MULTIPLIERS:
            x *= multiplier
            x &= _MASK
            x ^= x >> _SHIFT
        return x
