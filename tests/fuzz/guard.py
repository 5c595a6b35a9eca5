"""What every input is held to: an end in time, and a result or a named error."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LIMIT_S = 300.0
"""Far beyond what any input takes on a busy machine; nothing is measured, a hang is ended."""
SHORTEST_MESSAGE, LONGEST_MESSAGE = 15, 20_000


class UnclearError(Exception):
    """A message that does not say what it is about, or that nobody reads."""


class _Refused(Exception):  # noqa: N818 - no error
    pass


class Hang(BaseException):
    """An input did not end in time; no `except Exception` stops it."""


@contextmanager
def time_limit(limit_s: float = LIMIT_S) -> Iterator[None]:
    """Raises `Hang` in the block after so long. Python code only: a worker's parent sees the rest.

    Only in a main thread.
    """

    def end(signum: int, frame: object) -> None:
        raise Hang(f"no end within {limit_s} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def named(*errors: type[Exception], says: str = "") -> Iterator[None]:
    """Lets a block end with one of these errors, whose message is to the point.

    Args:
        *errors: The exact types, not what is derived from them.
        says: What the message must contain, such as the file's name.
    """
    with suppress(_Refused):
        try:
            yield
        except errors as error:
            if type(error) not in errors:
                raise
            message = str(error)
            if says not in message or not SHORTEST_MESSAGE < len(message) < LONGEST_MESSAGE:
                raise UnclearError(f"{says!r} must be named: {message[:300]!r}") from error
            raise _Refused from error
