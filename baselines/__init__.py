"""Hand-written policies: the paper's six, what it compares them with, and one registry."""

from __future__ import annotations

from baselines.registry import make, names

__all__ = ["make", "names"]
