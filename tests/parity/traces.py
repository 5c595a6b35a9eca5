"""Random traces of conversations, with the prefix blocks of their prompts."""

from __future__ import annotations

import json
import random
from pathlib import Path

from dlb_gym.scenario import Trace
from dlb_gym.trace import describe_trace

MOST_BLOCKS = 9


def random_trace(seed: int, folder: Path) -> Trace:
    """A trace of 20 to 120 requests, written as CSV or JSON lines.

    Prompts go on where an earlier one ended, with its last block or without, go back to an early
    part of one, repeat one, quote a document behind the common system prompt, begin anew, have no
    blocks, or have any blocks in any order. Some come at one instant, some have no output.
    """
    rng = random.Random(seed)
    block_tokens = rng.choice([16, 40, 64])
    path = folder / f"trace-{seed}.{rng.choice(['csv', 'jsonl'])}"
    prompts = _Prompts(rng)
    time_ms, lines = rng.randint(0, 10_000), []
    for _ in range(rng.randint(20, 120)):
        blocks = prompts.following()
        full = max(len(blocks) - 1, 0) * block_tokens
        tokens = rng.randint(full + 1, full + block_tokens), rng.choice([0, 1, 20, 60, 150])
        lines.append((time_ms, *tokens, blocks))
        time_ms += rng.choice([0, 0, 7, 100, 1_300])
    lines.append((time_ms + 50, 30, 10, []))
    path.write_text(_as_csv(lines) if path.suffix == ".csv" else _as_json(lines))
    return describe_trace(path, hash_ids_column="hash_ids", block_tokens=block_tokens)


class _Prompts:
    """Draws prompts as blocks, each with those before in mind."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._unused = 100
        self._system = self._fresh(rng.randint(0, 2))
        self._document = self._fresh(3)
        self._earlier: list[list[int]] = []

    def _fresh(self, count: int) -> list[int]:
        self._unused += count
        return list(range(self._unused - count, self._unused))

    def following(self) -> list[int]:
        rng = self._rng
        blocks = self._next(rng.random())[:MOST_BLOCKS]
        self._earlier.append(blocks)
        return blocks

    def _next(self, u: float) -> list[int]:
        rng = self._rng
        before = rng.choice(self._earlier[-12:]) if self._earlier else []
        if u < 0.5:
            return before[: len(before) - rng.randint(0, 1)] + self._fresh(rng.randint(1, 3))
        if u < 0.6:
            return before[: rng.randint(0, len(before))] + self._fresh(rng.randint(0, 3))
        if u < 0.7:
            return self._system + self._document + self._fresh(1)
        if u < 0.75:
            return []
        if u < 0.8:
            return [rng.randrange(100, self._unused) for _ in range(rng.randint(1, 5))]
        return self._system + self._fresh(rng.randint(1, 4))


def _as_csv(lines: list[tuple[int, int, int, list[int]]]) -> str:
    rows = [f"{t},{p},{o},{' '.join(map(str, blocks))}" for t, p, o, blocks in lines]
    return "\n".join(["timestamp,input_length,output_length,hash_ids", *rows]) + "\n"


def _as_json(lines: list[tuple[int, int, int, list[int]]]) -> str:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(keys, line, strict=True))) + "\n" for line in lines)
