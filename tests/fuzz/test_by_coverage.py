"""That fuzzing by coverage sees branches: it finds what chance would not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.by_coverage import Counts, counts_of

ROOT = Path(__file__).resolve().parents[2]
FAULTY = """
def read(path):
    content = path.read_bytes()
    if content[:1] == b"F":
        if content[1:2] == b"U":
            if content[2:3] == b"Z":
                raise KeyError("planted")
    raise ValueError("refused")
"""
SCRIPT = """
import sys
from tests.fuzz import by_coverage

def readers():
    import faulty
    return {"faulty": (".txt", faulty.read, (ValueError,))}

by_coverage._readers = readers
by_coverage.INSTRUMENTED = ["faulty"] if sys.argv[1] == "seen" else ["nothing"]
by_coverage.main(["faulty", *sys.argv[2:]])
"""


def fuzzed(folder: Path, *arguments: str) -> Counts:
    (folder / "faulty.py").write_text(FAULTY, encoding="utf-8")
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "script.py", *arguments, "-seed=1", "-max_len=8"],
        cwd=folder, env=environment, capture_output=True, text=True, errors="replace",
        timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == ("planted" not in done.stdout + done.stderr)
    return counts_of(done.stdout + done.stderr, failed=done.returncode != 0)


def test_a_fault_behind_three_branches_is_found_in_what_is_instrumented(tmp_path: Path) -> None:
    """Chance alone would need 2^24 inputs."""
    pytest.importorskip("atheris", reason="fuzzing by coverage needs atheris: make fuzz")
    counts = fuzzed(tmp_path, "seen", "-runs=20000")
    assert counts.failures == 1
    assert 0 < counts.tried < 20_000
    assert 0 < counts.branches_before < counts.branches


def test_that_nothing_is_instrumented_is_a_failure(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="fuzzing by coverage needs atheris: make fuzz")
    assert fuzzed(tmp_path, "unseen", "-runs=10") == (10, 1, 0, 0)


def test_the_figures_are_those_that_libfuzzer_writes() -> None:
    log = (
        "#3\tINITED cov: 19 ft: 19 corp: 1/1b exec/s: 0 rss: 324Mb\n"
        "#87\tNEW    cov: 26 ft: 30 corp: 5/10b lim: 4 exec/s: 0\n"
    )
    assert counts_of(log, failed=True) == Counts(87, 1, 19, 26)
    log += "#2606\tDONE   cov: 27 ft: 32 corp: 6/12b\nstat::number_of_executed_units: 2607\n"
    assert counts_of(log, failed=False) == Counts(2607, 0, 19, 27)
