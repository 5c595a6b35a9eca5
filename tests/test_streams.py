"""Independent random streams."""

from __future__ import annotations

import numpy as np
import pytest

from dlb_gym.streams import Stream, random_stream


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**63 + 5, 2**160 + 7])
def test_a_stream_is_that_of_numpys_spawn_key(seed: int) -> None:
    sequence = np.random.SeedSequence(seed, spawn_key=(4, int(Stream.REQUESTS), 2, 9))
    expected = np.random.Generator(np.random.PCG64(sequence)).random(5)
    assert random_stream(seed, 4, Stream.REQUESTS, 2, 9).random(5).tolist() == expected.tolist()


def test_streams_whose_keys_differ_in_one_place_differ() -> None:
    keys = [(s, e, k, i) for s in (0, 1) for e in (0, 1) for k in Stream for i in (0, 1)]
    firsts = {random_stream(s, e, k, i).random() for s, e, k, i in keys}
    assert len(firsts) == len(keys)


@pytest.mark.parametrize("key", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 2**32, 0)])
def test_a_key_out_of_range_is_refused(key: tuple[int, int, int]) -> None:
    with pytest.raises(
        ValueError, match=r"all must be >= 0, and episode and ids below 2\*\*32; choose"
    ):
        random_stream(key[0], key[1], Stream.REQUESTS, key[2])
