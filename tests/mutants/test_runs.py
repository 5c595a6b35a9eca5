"""A fault counts as caught by a failed test only, or by the end that its mutant declares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.copies import run_tests
from tests.mutants.mutant import Mutant
from tests.mutants.verdict import Verdict, judge

MUTANT = Mutant("planted", "module.py", "old", "new", ("test_it.py",), "nothing")
ENDS = {
    "passes": ("pass", Verdict.SURVIVED, "SURVIVED test_it.py"),
    "fails": ("assert False", Verdict.CAUGHT, "test_it.py::test_it"),
    "hangs": ("time.sleep(60)", Verdict.INCONCLUSIVE, "INCONCLUSIVE no end within the limit"),
    "crashes": (
        "os.kill(os.getpid(), signal.SIGSEGV)",
        Verdict.INCONCLUSIVE,
        "INCONCLUSIVE killed by SIGSEGV",
    ),
    "leaves": ("os._exit(5)", Verdict.INCONCLUSIVE, "INCONCLUSIVE pytest's exit status 5"),
    "leaves as if it failed": (
        "os._exit(1)",
        Verdict.INCONCLUSIVE,
        "INCONCLUSIVE pytest's exit status 1",
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_only_a_failed_test_or_a_declared_end_counts_as_caught(end: str, tmp_path: Path) -> None:
    body, verdict, why = ENDS[end]
    tree = tmp_path / "tree"
    tree.mkdir()
    text = f"import os\nimport signal\nimport time\n\n\ndef test_it():\n    {body}\n"
    (tree / "test_it.py").write_text(text, encoding="utf-8")
    outcome = run_tests(tmp_path, ["test_it.py"], True, 1.0 if end == "hangs" else 60.0)
    assert judge(MUTANT, outcome) == (verdict, why)
    for shows in ("hang", "crash"):
        declared, _ = judge(replace(MUTANT, shows=shows), outcome)
        assert declared is (Verdict.CAUGHT if (end, shows) in DECLARED else verdict)


DECLARED = {("hangs", "hang"), ("crashes", "crash")}


def test_a_module_that_cannot_be_imported_shows_nothing_of_its_tests(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "test_it.py").write_text("import no_such_module\n", encoding="utf-8")
    outcome = run_tests(tmp_path, ["test_it.py"], True, 60.0, "-x")
    assert judge(MUTANT, outcome)[0] is Verdict.INCONCLUSIVE


def test_each_law_that_a_mutant_names_must_notice(tmp_path: Path) -> None:
    laws = tmp_path / "tree" / "tests" / "laws"
    laws.mkdir(parents=True)
    text = "def test_one():\n    assert False\n\n\ndef test_other():\n    pass\n"
    (laws / "test_it.py").write_text(text, encoding="utf-8")
    one, other = (f"tests/laws/test_it.py::test_{name}" for name in ("one", "other"))
    outcome = run_tests(tmp_path, [one, other], True, 60.0)
    assert judge(replace(MUTANT, tests=(one,)), outcome) == (Verdict.CAUGHT, one)
    assert judge(replace(MUTANT, tests=(one, other)), outcome) == (
        Verdict.SURVIVED,
        f"SURVIVED {other}",
    )
