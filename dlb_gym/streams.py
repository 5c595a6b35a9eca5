"""Independent random streams: the one place where they are numbered.

A stream is keyed by (seed, episode, stream, ids...), through numpy's SeedSequence and its spawn
key. Streams of different keys are independent and none depends on what was drawn before, so a
chunk of requests is the same in whatever order chunks are asked for.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What a stream is for; the ids that follow it in the key are in brackets.

    A number, once used, keeps its meaning: results recorded under a seed depend on it.
    """

    FAMILY = 0
    """A scenario drawn from a family []."""
    BURST_ROOT = 1
    """The root whose demand rises [disturbance]."""
    OUTAGE_ORDER = 2
    """The order in which cells lose servers [disturbance]."""
    REQUESTS = 3
    """A root's own requests [root, chunk]."""
    BURST_REQUESTS = 4
    """A burst's additional requests [disturbance, root, chunk]."""
    TRACE_OFFSET = 5
    """Where in its trace a replay starts []."""
    TRACE_ROOTS = 6
    """Roots and uniforms of the requests of a replayed trace [chunk]."""
    SESSIONS = 7
    """Sessions of a root and all their requests [root, 2^31 + chunk in which they start]."""
    SESSION_HASHES = 8
    """Salt of the scheduling hashes []."""
    DISTURBED_CELL = 9
    """The cell that a disturbance strikes [disturbance]."""
    CRASHED_ROOT = 10
    """The root whose replicas crash [disturbance]."""
    MODEL_NOISE = 11
    """Errors of noisy latency models []."""
    ENGINE_SEED = 12
    """Seed of what is drawn inside the engine []."""


_WORD = 2**32
_POOL_WORDS = 4


def random_stream(seed: int, episode: int, stream: Stream, *ids: int) -> np.random.Generator:
    """The generator of one stream: that of SeedSequence(seed, spawn_key=(episode, stream, *ids)).

    The words are put together here since numpy takes three times as long over a tuple, and a
    stream is opened for every root and chunk.

    Args:
        seed: The user's seed, >= 0.
        episode: Number of the episode since that seed was set, >= 0 and below 2^32.
        stream: What is drawn.
        *ids: What it is drawn for, each >= 0 and below 2^32.

    Raises:
        ValueError: The seed or another part of the key is out of range.
    """
    key = (episode, stream, *ids)
    if seed < 0 or min(key) < 0 or max(key) >= _WORD:
        raise ValueError(
            f"seed = {seed}, episode = {episode}, ids = {ids}: all must be >= 0, and episode and "
            "ids below 2**32; choose another seed"
        )
    words = [seed % _WORD]
    while seed >= _WORD:
        seed //= _WORD
        words.append(seed % _WORD)
    words += [0] * (_POOL_WORDS - len(words))
    entropy = np.random.SeedSequence(np.array([*words, *key], dtype=np.uint32))
    return np.random.Generator(np.random.PCG64(entropy))
