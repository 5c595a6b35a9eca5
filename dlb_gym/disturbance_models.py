"""What may happen to a system during an episode, as frozen data; see `disturbances`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dlb_gym.strict import MAX_COUNT, Factor, Fraction, Name, PositiveSeconds, Strict

Names = tuple[Name, ...]


class _Disturbance(Strict):
    """Active from `start` to `end`, both fractions of the horizon."""

    start: Fraction = 0.3
    end: Fraction = 0.7

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.start >= self.end:
            raise ValueError(f"start = {self.start} must come before end = {self.end}")
        return self


class Burst(_Disturbance):
    """One root's demand rises until the fleet's utilisation is `to_utilisation` (paper B.3).

    `root` None: drawn from the episode's seed.
    """

    kind: Literal["burst"] = "burst"
    to_utilisation: Annotated[Factor, Field(le=10)] = 0.95
    root: Name | None = None


class Outage(_Disturbance):
    """Cells fall to `servers_left` servers, which finish what they have (paper B.3).

    `cells` None: cells in an order drawn from the episode's seed, until the utilisation of the
    live fleet exceeds `to_utilisation`.
    """

    kind: Literal["outage"] = "outage"
    to_utilisation: Annotated[Factor, Field(le=10)] = 0.95
    servers_left: Annotated[int, Field(ge=1, le=MAX_COUNT)] = 1
    cells: Names | None = None


class _InCells(_Disturbance):
    """`cells` None: one cell, drawn from the episode's seed."""

    cells: Names | None = None


class ServerCrash(_InCells):
    """The highest-numbered servers of cells stop, and what they had not finished fails.

    Attributes:
        servers: How many; at least one of a cell stays.
    """

    kind: Literal["server_crash"] = "server_crash"
    servers: Annotated[int, Field(ge=1, le=MAX_COUNT)] = 1


class BlackHole(_InCells):
    """Cells fail a share of their requests at once, so that they look idle (paper 3.4)."""

    kind: Literal["black_hole"] = "black_hole"
    error_fraction: Annotated[float, Field(gt=0, le=1)] = 0.5


class SlowCell(_InCells):
    """Servers of cells work at `speed` times their speed."""

    kind: Literal["slow_cell"] = "slow_cell"
    speed: Annotated[Factor, Field(lt=1)] = 0.5


class LeafCrash(_InCells):
    """Leaf replicas 0 to `replicas` - 1 of cells stop (paper 3.6)."""

    kind: Literal["leaf_crash"] = "leaf_crash"
    replicas: Annotated[int, Field(ge=1, le=MAX_COUNT)] = 1


class RootCrash(_Disturbance):
    """Root replicas 0 to `replicas` - 1 of roots stop: clients go to their peers (paper 3.6).

    `roots` None: one root, drawn from the episode's seed.
    """

    kind: Literal["root_crash"] = "root_crash"
    replicas: Annotated[int, Field(ge=1, le=MAX_COUNT)] = 1
    roots: Names | None = None


class Partition(_InCells):
    """Nothing passes between cells and roots; `roots` None: all roots but those of the same name.

    A request or answer on its way meanwhile becomes an error when it would have come.
    """

    kind: Literal["partition"] = "partition"
    roots: Names | None = None


class LatencyShift(_InCells):
    """Every journey between cells and roots takes `extra_s` more; `roots` None: as `Partition`."""

    kind: Literal["latency_shift"] = "latency_shift"
    extra_s: PositiveSeconds = 0.1
    roots: Names | None = None


Disturbance = Annotated[
    Burst
    | Outage
    | ServerCrash
    | BlackHole
    | SlowCell
    | LeafCrash
    | RootCrash
    | Partition
    | LatencyShift,
    Field(discriminator="kind"),
]
