"""Which tests take long."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent

SLOW = (
    "agents",
    "experiments",
    "fuzz",
    "laws",
    "parity",
    "test_batching",
    "test_calibration",
    "test_contradictions",
    "test_docs",
    "test_endpoints",
    "test_engine_cache",
    "test_estimator",
    "test_evaluation",
    "test_killed_runs",
    "test_long_runs",
    "test_pettingzoo",
    "test_sb3",
    "test_session_routing",
    "test_sessions",
    "test_simulator",
    "test_train",
)
"""Folders and modules that `make test-fast` leaves out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by where they are."""
    for item in items:
        place = item.path.relative_to(TESTS).with_suffix("").as_posix()
        if place.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
