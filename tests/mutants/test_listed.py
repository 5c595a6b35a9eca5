"""The mutants fit the tree: `make mutants` plants them, which takes longer than the suite may."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.mutants.copies import ROOT
from tests.mutants.listed import MUTANTS
from tests.mutants.mutant import planted


def test_every_mutant_can_be_planted_and_names_tests_that_are_there() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        text = (ROOT / mutant.path).read_text(encoding="utf-8")
        assert planted(mutant, text) != text
        assert mutant.tests
        for test in mutant.tests:
            file, _, name = test.partition("::")
            function = name.partition("[")[0]
            assert f"def {function}" in (ROOT / file).read_text(encoding="utf-8"), mutant.name


def test_every_law_has_a_fault_that_it_must_notice() -> None:
    laws = set()
    for path in (ROOT / "tests" / "laws").glob("test_*.py"):
        for text in path.read_text(encoding="utf-8").split("\ndef ")[1:]:
            name = text.partition("(")[0]
            if name.startswith("test_") and "    assert_" in text:  # else checks a formula alone
                laws.add(f"tests/laws/{path.name}::{name}")
    assert len(laws) > 20
    named = {test.partition("[")[0] for mutant in MUTANTS for test in mutant.tests}
    assert laws - named == set()


def test_a_mutant_whose_text_is_not_there_once_is_refused_by_name() -> None:
    mutant = replace(MUTANTS[0], name="old-one", old="is twice")
    for text in ("is twice, is twice", "nowhere"):
        with pytest.raises(ValueError, match=r"'old-one'.*bring the mutant up to date"):
            planted(mutant, text)
