"""A recorded trace in the reference: its sessions, and its requests as an episode offers them.

Sessions (``dlb_gym/trace_sessions.py``): the run of a request is the longest beginning of its
blocks all of which stood in earlier prompts; the latest earlier prompt with the run's last block
is the turn before, if the run is longer than half of that prompt's blocks. Found by looking back,
prompt after prompt.

Replay (``dlb_gym/trace_replay.py``): n requests at s_0 = 0 <= ... <= s_(n-1), lap after lap, each
n / rate long. Request k of lap L arrives at

    s_k * ((n - 1) / rate / s_(n-1)) + (L * (n / rate) - offset).

What is given: the uniforms of the offset, of the requests' roots and choices, and the salt of the
session hashes.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlb_gym.scenario import Trace
from dlb_gym.streams import Stream, random_stream

HASH_BITS = 53
HASH_MULTIPLIERS = (0x1B873593CC9E2D, 0x17F4A7C15F39CD)
Row = tuple[float, ...]
"""Arrival, prompt and output tokens, two uniforms, session, its hash, and tokens of its prefix."""


@dataclass(frozen=True)
class Recorded:
    """A line of a trace."""

    time_s: float
    prompt: int
    output: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Turn:
    """What follows of a line: its session, -1 for none, and the tokens of its prefix."""

    session: int
    prefix: int


def recorded(trace: Trace) -> list[Recorded]:
    """The lines of a CSV or JSONL trace, packed or not, with numbers for times, the first at 0."""
    assert trace.hash_ids_column is not None
    lines = [
        Recorded(
            float(values[trace.time_column]) * trace.time_unit_s,
            int(values[trace.prompt_column]),
            int(values[trace.output_column]),
            tuple(_blocks(values[trace.hash_ids_column])),
        )
        for values in _values(Path(trace.path))
    ]
    first_s = lines[0].time_s
    return [
        Recorded(line.time_s - first_s, line.prompt, line.output, line.blocks) for line in lines
    ]


def _values(path: Path) -> Iterator[dict[str, str | list[int]]]:
    packed = path.suffix == ".gz"
    with gzip.open(path, "rt", newline="") if packed else path.open(newline="") as file:
        if ".csv" in path.suffixes:
            yield from csv.DictReader(file)
        else:
            for line in file:
                yield json.loads(line)


def _blocks(value: str | list[int]) -> list[int]:
    return [int(block) for block in value.split()] if isinstance(value, str) else value


def turns(lines: Sequence[Recorded], block_tokens: int) -> list[Turn]:
    """The session and the prefix of each line."""
    found: list[Turn] = []
    sessions = 0
    seen: set[int] = set()
    prompts = [frozenset(line.blocks) for line in lines]
    for number, line in enumerate(lines):
        run = 0
        while run < len(line.blocks) and line.blocks[run] in seen:
            run += 1
        seen |= prompts[number]
        before = next(
            (k for k in reversed(range(number)) if run and line.blocks[run - 1] in prompts[k]), None
        )
        if not line.blocks:
            found.append(Turn(-1, 0))
        elif before is not None and run > len(lines[before].blocks) / 2:
            prefix = min(run * block_tokens, line.prompt)
            found.append(Turn(found[before].session, prefix))
        else:
            found.append(Turn(sessions, 0))
            sessions += 1
    return found


class Hashes:
    """Scheduling hashes of an episode's sessions (``dlb_gym/scheduling_hash.py``)."""

    def __init__(self, seed: int) -> None:
        self._salt = int(random_stream(seed, 0, Stream.SESSION_HASHES).integers(2**HASH_BITS))

    def of(self, session: int) -> int:
        x = session ^ self._salt
        for multiplier in HASH_MULTIPLIERS:
            x = x * multiplier % 2**HASH_BITS
            x ^= x // 2**27
        return x


def replayed(
    trace: Trace, rate_rps: float, demand: Sequence[float], seed: int, chunk_s: float, chunks: int
) -> list[list[Row]]:
    """Rows of each root in so many chunks of time, in order of arrival, equal ones in the file's.

    Args:
        trace: The trace.
        rate_rps: Of all roots together.
        demand: Each root's.
        seed: Of the episode, its seed's first.
        chunk_s: Length of a chunk; each has uniforms of its own.
        chunks: How many.
    """
    lines = recorded(trace)
    of_line = turns(lines, trace.block_tokens)
    sessions = 1 + max(turn.session for turn in of_line)
    hashes = Hashes(seed)
    rows: list[list[Row]] = [[] for _ in demand]
    arrivals = _arrivals(lines, rate_rps, seed, chunk_s * chunks)
    for chunk in range(chunks):
        inside = [each for each in arrivals if chunk_s * chunk <= each[0] < chunk_s * (chunk + 1)]
        uniforms = random_stream(seed, 0, Stream.TRACE_ROOTS, chunk).random((len(inside), 3))
        for (arrival_s, lap, k), u in zip(inside, uniforms.tolist(), strict=True):
            line, turn = lines[k], of_line[k]
            session, session_hash, u_root = -1, -1, u[0]
            if turn.session >= 0:
                session = lap * sessions + turn.session
                session_hash = hashes.of(session)
                u_root = session_hash / 2**HASH_BITS
            row = (arrival_s, line.prompt, line.output, u[1], u[2])
            rows[_root(u_root, demand)].append((*row, session, session_hash, turn.prefix))
    return rows


def _arrivals(
    lines: Sequence[Recorded], rate_rps: float, seed: int, end_s: float
) -> list[tuple[float, int, int]]:
    """(arrival, lap, line) of all that arrive in [0, end)."""
    lap_s = len(lines) / rate_rps
    offset_s = lap_s * float(random_stream(seed, 0, Stream.TRACE_OFFSET).random())
    scale = (len(lines) - 1) / rate_rps / lines[-1].time_s
    every = [
        (line.time_s * scale + (lap * lap_s - offset_s), lap, k)
        for lap in range(math.ceil((end_s + offset_s) / lap_s) + 1)
        for k, line in enumerate(lines)
    ]
    return [each for each in every if 0.0 <= each[0] < end_s]


def _root(u: float, demand: Sequence[float]) -> int:
    """The root in whose share of the demand a uniform falls."""
    shares = [own / sum(demand) for own in demand]
    bounds = [sum(shares[: root + 1]) for root in range(len(shares) - 1)]
    return sum(bound <= u for bound in bounds)
