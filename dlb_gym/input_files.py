"""Files that users name: read as a whole, once it is sure that they end and are not too large."""

from __future__ import annotations

import stat
from pathlib import Path

from dlb_gym.messages import shown


class InputFileError(ValueError):
    """A file that cannot be read; the message begins with a verb, whose subject is the file."""


def input_path(path: object, what: str) -> Path:
    """The path of a file that a user names.

    Raises:
        InputFileError: It is neither text nor a path; the message is a whole sentence.
    """
    if isinstance(path, str | Path):
        return Path(path)
    raise InputFileError(f"{what} must be the path of a file, text; got {shown(path)}")


def read_whole(path: Path, most_bytes: int, remedy: str) -> bytes:
    """The content of a file.

    A pipe or device, on which reading might never end, is refused before it is opened.

    Args:
        path: Of the file.
        most_bytes: The largest that is read.
        remedy: What to do about a larger one.

    Raises:
        InputFileError: The file is missing, not a regular one, not readable or too large.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputFileError("is no regular file; give one that was saved to disk")
        size = status.st_size
        if size <= most_bytes:
            with path.open("rb") as file:
                content = file.read(most_bytes + 1)
            size = len(content)
    except FileNotFoundError:
        raise InputFileError("does not exist; check the path") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputFileError(f"cannot be read: {reason}; give a readable file") from error
    except (InputFileError, MemoryError):
        raise
    except ValueError as error:  # a path with a NUL
        raise InputFileError(f"cannot be read: {error}; check the path") from error
    if size > most_bytes:
        raise InputFileError(
            f"holds {size:,} bytes or more; at most {most_bytes:,} are read: {remedy}"
        )
    return content
