"""Small scenarios whose rates can be worked out by hand, and where to find real data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import scenario_from_dict

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def needs(path: Path) -> pytest.MarkDecorator:
    """Skips a test where a file of real data does not lie beside the checkout."""
    return pytest.mark.skipif(not path.is_file(), reason=f"needs {path.name}, kept elsewhere")


def two_cells(**changes: Any) -> Scenario:
    """Nominal rates 10 * 8 = 80/s and 4 * 8 = 32/s, zero-load time 1.1 s; offered 0.5 * 112/s.

    A request takes 500 * 2e-4 = 0.1 s of the prefill engine and 200 * 5e-3 / 8 = 0.125 s of the
    eight decode slots, so a server serves 8 requests per second.
    """
    document: dict[str, Any] = {
        "name": "two_cells",
        "cells": [
            {"name": "east", "region": "us-east4", "servers": 10},
            {"name": "west", "region": "europe-west4", "servers": 4},
        ],
        "roots": [
            {"name": "east", "region": "us-east4", "demand": 3},
            {"name": "west", "region": "europe-west4", "demand": 1},
        ],
        "demand": {"utilisation": 0.5},
    }
    return scenario_from_dict(document | changes)
