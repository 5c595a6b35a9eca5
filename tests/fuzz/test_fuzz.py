"""A short part of `make fuzz`, the same inputs every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dlb_gym import calibration
from tests.fuzz.guard import time_limit
from tests.fuzz.targets import TARGETS, Target
from tests.fuzz.worker import ROUND, Report, run_round


@pytest.fixture(autouse=True)
def _fits_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_folder_of_kernels", lambda: None)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_hostile_input_is_used_correctly_or_refused_by_name(target: Target, tmp_path: Path) -> None:
    @settings(
        derandomize=True,
        max_examples=target.examples,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def hold(hostile: Any) -> None:
        with time_limit():
            target.check(hostile, tmp_path)

    hold()


def inputs_of(seed: int, folder: Path) -> list[str]:
    """What a worker tries first."""
    tried: list[str] = []
    target = TARGETS[-1]._replace(check=lambda hostile, folder: tried.append(repr(hostile)))
    run_round(target, seed, folder, Report(folder, "seeds"), set())
    return tried


def test_a_seed_gives_the_same_inputs_again_and_another_seed_others(tmp_path: Path) -> None:
    first, again, others = (inputs_of(seed, tmp_path) for seed in (1, 1, 2))
    assert first == again
    assert len(set(first)) > ROUND // 2
    assert len(set(first) & set(others)) < ROUND // 4
