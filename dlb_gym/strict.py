"""What every model of a scenario is made of: strict, frozen data, and kinds of numbers.

Numbers have bounds so that no sum, product or ratio of a few of them leaves the range in which
float64 and int64 count reliably; no system comes near.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_SECONDS = 1e9
"""Thirty years."""
MIN_SECONDS = 1e-12
"""Where a time must not be 0."""
MAX_TOKENS = 100_000_000
"""More tokens than this in one request are taken for a slip."""
MAX_COUNT = 1_000_000_000


def _not_tiny(value: float) -> float:
    if value < MIN_SECONDS:
        raise ValueError(f"must be at least {MIN_SECONDS:g}; choose a larger number")
    return value


Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
PositiveSeconds = Annotated[float, Field(gt=0, le=MAX_SECONDS), AfterValidator(_not_tiny)]
Factor = Annotated[float, Field(gt=0, le=1e9), AfterValidator(_not_tiny)]
"""A positive number without a unit."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1, max_length=80)]


class Strict(BaseModel):
    """Frozen, exact types, no unknown key, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
