"""Processes that end by SIGKILL while they write, at a moment that is chosen and not timed.

A moment is: before a file is opened, in the middle of its bytes, before they are forced to the
disk, before and after the new name is given, before a folder is removed. Children are forked, so
that the imports and the compiled kernels are loaded once. Run as a program:

    python -m tests.killing evaluate|train FOLDER
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

MOMENTS_OF_A_FILE = 5


class _Moments:
    """Counts the moments of this process and ends it at the n-th."""

    def __init__(self, last: int) -> None:
        self._left = last
        self._originals: Any = (Path.open, Path.replace, os.fsync, shutil.rmtree)

    def passes(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path: Path, *arguments: Any, **keywords: Any) -> Any:
        part = path.suffix == ".part"
        if part:
            self.passes()
        file = self._originals[0](path, *arguments, **keywords)
        return _HalvedFile(file, self.passes) if part else file

    def replace(self, path: Path, target: Path) -> Path:
        self.passes()
        moved: Path = self._originals[1](path, target)
        self.passes()
        return moved

    def sync(self, descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # a folder's is after the new name
            self.passes()
        self._originals[2](descriptor)

    def remove(self, path: Path, ignore_errors: bool = False) -> None:
        if path.is_dir():
            self.passes()
        self._originals[3](path, ignore_errors)


class _HalvedFile:
    """A file with a moment in the middle of what is written."""

    def __init__(self, file: Any, passes: Callable[[], None]) -> None:
        self._file, self._passes = file, passes

    def __enter__(self) -> _HalvedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> None:
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        self._passes()
        self._file.write(data[len(data) // 2 :])


def kill_at(moment: int) -> None:
    """Makes this process end at its n-th moment."""
    moments = _Moments(moment)
    patched: Any = Path
    patched.open = lambda path, *arguments, **keywords: moments.open(path, *arguments, **keywords)
    patched.replace = lambda path, target: moments.replace(path, target)
    os.fsync = moments.sync
    shutil.rmtree = moments.remove  # type: ignore[assignment]


def killed(work: Callable[[], object], moment: int) -> bool:
    """Does the work in a child that ends at a moment; False: it came to its end before."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            kill_at(moment)
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if status:
        raise RuntimeError(f"the child failed: {status}")
    return False


def _evaluate(folder: Path) -> None:
    """An evaluation that is killed in every moment of every file that it writes."""
    import train

    arguments = [
        "evaluate", "--policies", "random", "capacity", "--seeds", "2", "--settle", "0",
        "--set", "warmup_s=0.5", "--set", "horizon_s=1.0", "--name", "run",
    ]  # fmt: skip

    def evaluate(place: str) -> Callable[[], None]:
        def work() -> None:
            os.chdir(folder / place)
            nowhere = io.StringIO()
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                status = train.main(arguments)
            if status != 0:
                raise RuntimeError(f"the evaluation ended with status {status}")

        return work

    for place in ("whole", "killed"):
        (folder / place).mkdir()
    evaluate("whole")()
    each_file = list(range(1, MOMENTS_OF_A_FILE + 1))
    # A finished result is not written again; records.jsonl and then report.html always are.
    moments = each_file * 5 + [MOMENTS_OF_A_FILE + moment for moment in each_file]
    finished: dict[str, bytes] = {}
    for moment in moments:
        if not killed(evaluate("killed"), moment):
            raise RuntimeError(f"moment {moment} never came")
        _require_whole(folder / "killed", folder / "whole")
        results = folder / "killed" / "runs" / "run" / "results"
        now = {path.name: path.read_bytes() for path in results.glob("[!.]*")}
        if not finished.items() <= now.items():
            raise RuntimeError("a finished result was lost or changed")
        finished = now
    if len(finished) != 4:
        raise RuntimeError(f"{len(finished)} results are finished; there should be 4")
    evaluate("killed")()


def _require_whole(place: Path, whole: Path) -> None:
    """Every file that can be seen has the bytes that it has where nobody was killed."""
    for path in place.rglob("[!.]*"):
        if path.is_file() and path.read_bytes() != (whole / path.relative_to(place)).read_bytes():
            raise RuntimeError(f"{path} is not whole")


def _train(folder: Path) -> None:
    """A training that is killed in every moment of a checkpoint."""
    from agents.checkpoints import read_model, read_state, read_statistics
    from agents.loading import load
    from agents.run_folders import checkpoints_of
    from agents.training import train
    from tests.agents.trained import newest, tiny

    base, expected = folder / "base", folder / "expected"
    train(tiny(), base)  # as many checkpoints as are kept: the next one removes the oldest
    shutil.copytree(base, expected)
    train(tiny(steps=128), expected)
    weights = (newest(expected) / "policy.safetensors").read_bytes()
    files = {path.name for path in newest(expected).iterdir()}
    moment = 0
    while True:
        moment += 1
        place = folder / f"killed-{moment}"
        shutil.copytree(base, place)
        if not killed(lambda place=place: train(tiny(steps=128), place), moment):
            break
        for checkpoint in checkpoints_of(place):
            if {path.name for path in checkpoint.iterdir()} != files:
                raise RuntimeError(f"{checkpoint} is not whole")
        load(place)
        read_model(newest(place))
        read_statistics(newest(place))
        steps = [read_state(checkpoint).steps for checkpoint in checkpoints_of(place)]
        if steps not in ([32, 64, 96], [32, 64, 96, 128], [64, 96, 128]):
            raise RuntimeError(f"checkpoints after the kill: {steps}")
        if moment % 6 == 1:
            train(tiny(steps=128), place)
            if (newest(place) / "policy.safetensors").read_bytes() != weights:
                raise RuntimeError("the resumed training gave other weights")
            if steps[-1] == 96 and list((place / "checkpoints").glob(".*")):
                raise RuntimeError("a part was left")
    sys.stdout.write(f"{moment - 1}\n")


if __name__ == "__main__":
    {"evaluate": _evaluate, "train": _train}[sys.argv[1]](Path(sys.argv[2]))
