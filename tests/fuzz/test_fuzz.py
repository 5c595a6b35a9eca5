"""A short part of `make fuzz`, the same inputs every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dlb_gym import calibration
from tests.fuzz.guard import time_limit
from tests.fuzz.targets import TARGETS, Target


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
