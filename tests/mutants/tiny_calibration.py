"""Pytest plugin: latency curves from a few requests, so that kernels can run as plain Python.

The curves are rough, but every test that a mutant names passes with them on the clean tree.
"""

from __future__ import annotations

from dlb_gym import calibration

calibration.SERVERS, calibration.WINDOWS, calibration.WINDOW = 2, 2, 8.0
calibration.LOADS = (0.1, 0.5, 0.9, 1.3)
