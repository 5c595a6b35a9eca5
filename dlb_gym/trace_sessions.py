"""Sessions of a recorded trace that names the blocks of its prompts (Mooncake's `hash_ids`).

A block is `block_tokens` tokens of a prompt, and its id stands for these tokens and all before
them: two prompts begin alike as far as their ids do. Requests are taken in the order of the trace.
With b_1 ... b_n the blocks of a request, its run is the largest m such that b_1 ... b_m all stood
in earlier prompts: what a server that forgets nothing would not compute again.

The request whose prompt held b_m last, of n' blocks, is the turn before if m > n' / 2, and both
belong to one session, with min(m block_tokens, prompt tokens) for prefix. Otherwise the request
starts a session and has no prefix: a system prompt, which all sessions begin with, or a document
makes no session of those that quote it. The rule is hardly in doubt on Mooncake's traces: nine runs
of ten that are longer than the system prompt reach the turn before's last block or the last but one
(a block that was not full changes when the conversation goes on).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlb_gym.messages import shown
from dlb_gym.trace_file import TraceError

MAX_BLOCK_ID = 2**64 - 1
MAX_BLOCKS = 10_000_000
"""Different blocks of a trace: about 1.5 GB while it is read. Mooncake's have 0.2 million."""

_NO_SESSION = -1


class Turn(NamedTuple):
    """A request's session, -1 for none, and the tokens it shares with the turn before."""

    session: int
    prefix_tokens: int


class SessionFinder:
    """Gives the requests of one trace to sessions, numbered from 0 in the order they start.

    Args:
        block_tokens: Tokens of a full block.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._last_holder: dict[int, int] = {}
        self._holders: list[tuple[int, int]] = []  # session and blocks of every request with blocks
        self._sessions = 0

    @property
    def blocks(self) -> int:
        """How many different blocks were seen."""
        return len(self._last_holder)

    def run(self, blocks: Sequence[int]) -> int:
        """How many of the leading blocks stood in prompts added before."""
        for number, block in enumerate(blocks):
            if block not in self._last_holder:
                return number
        return len(blocks)

    def add(self, blocks: Sequence[int], prompt_tokens: int) -> Turn:
        """Takes in the next request; one without blocks belongs to no session."""
        if not blocks:
            return Turn(_NO_SESSION, 0)
        run = self.run(blocks)
        session, held = self._holders[self._last_holder[blocks[run - 1]]] if run else (0, 0)
        prefix_tokens = min(self._block_tokens * run, prompt_tokens)
        if 2 * run <= held or run == 0:
            session, prefix_tokens = self._sessions, 0
            self._sessions += 1
        self._last_holder.update(dict.fromkeys(blocks, len(self._holders)))
        self._holders.append((session, len(blocks)))
        return Turn(session, prefix_tokens)


def block_ids(value: object, column: str, place: str) -> list[int]:
    """Block ids from a row: a JSON list of numbers, or text that spaces separate.

    Args:
        value: The row's value.
        column: Its column, for messages.
        place: File and line, for messages.

    Raises:
        TraceError: The value is neither, or holds anything but whole numbers in [0, 2^64).
    """
    items = value.split() if isinstance(value, str) else value
    if not isinstance(items, list):
        raise TraceError(
            f"{place}: {column} = {shown(value)} must be a list of block ids, or text with "
            "spaces between them; correct or drop the line, or name another hash_ids_column"
        )
    return [_block_id(item, column, place) for item in items]


def _block_id(item: object, column: str, place: str) -> int:
    number = -1
    if isinstance(item, int) and not isinstance(item, bool):
        number = item
    elif isinstance(item, str) and item.isascii() and item.isdecimal() and len(item) <= 20:
        number = int(item)
    if not 0 <= number <= MAX_BLOCK_ID:
        raise TraceError(
            f"{place}: {column} holds {shown(item)}; every block id must be a whole number "
            f"from 0 to {MAX_BLOCK_ID}; correct or drop the line"
        )
    return number
