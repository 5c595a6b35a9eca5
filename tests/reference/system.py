"""What the reference is given and what it says: systems, requests, views, results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym.disturbances import Change, Down, Window
from dlb_gym.mechanisms import (
    Affinity,
    Autoscaler,
    ErrorAversion,
    LatencyEstimate,
    Leaf,
    Retries,
    Telemetry,
)
from tests.batching_model import Design
from tests.reference_choices import Decision

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Model = tuple[float, float, float, float]
"""alpha_s, beta_s, knee and smoothing of a latency model."""

KINDS = ("full", "black_hole", "crashed", "gave_up", "unreachable", "root_crashed")
"""Kinds of errors, in the order in which the simulator counts them."""


@dataclass(frozen=True)
class Mechanisms:
    """What is on beyond requests, servers and probes; by default nothing.

    Attributes:
        seed: Of the hashes that decide random events.
        schedules: What happens in each cell; None: what ``System.live_servers`` says.
        windows: Arcs that are cut or longer for a while.
        leaves_down: Leaf replicas that are down for a while.
        roots_down: Root replicas that are down for a while.
        telemetry: None: reports know all at once and all of them come.
        aversion: None: roots avoid nobody.
        affinity: None: servers keep no prefixes.
        leaf: How leaves choose servers.
        retries: None: clients do not try again.
        estimate: Read where models are fitted online.
        autoscaler: None: servers come and go as the schedules say, which otherwise say nothing.
        models: That reports carry from clock 0 on, one a cell; () if nobody reads them.
        given_models: (cell, round) to the model that the cell publishes then, in place of the
            reference's own fit; see ``estimation``.
        server_rps: Nominal rate of a server, one a cell: a cell's weight where capacity counts.
        zero_load_s: Mean serving latency of an empty cell, one a cell, for the autoscaler.
        prefix_s_per_token: What a cached prompt token saves, one a cell.
        max_wait_s: Clients of disaggregated servers give up after that.
        designs: Of batching servers, one a cell; None: disaggregated ones.
        measured: Errors by kind count requests that arrived in this span, its end included;
            the end is the horizon's.
    """

    seed: int = 0
    schedules: tuple[tuple[Change, ...], ...] | None = None
    windows: tuple[Window, ...] = ()
    leaves_down: tuple[Down, ...] = ()
    roots_down: tuple[Down, ...] = ()
    telemetry: Telemetry | None = None
    aversion: ErrorAversion | None = None
    affinity: Affinity | None = None
    leaf: Leaf = field(default_factory=Leaf)
    retries: Retries | None = None
    estimate: LatencyEstimate | None = None
    autoscaler: Autoscaler | None = None
    models: tuple[Model, ...] = ()
    given_models: Callable[[int, int], Model] | None = None
    server_rps: tuple[float, ...] = ()
    zero_load_s: tuple[float, ...] = ()
    prefix_s_per_token: tuple[float, ...] = ()
    max_wait_s: float = math.inf
    designs: tuple[Design, ...] | None = None
    measured: tuple[float, float] = (-1.0, math.inf)


@dataclass(frozen=True)
class System:
    """What serves: network, cells and intervals.

    Attributes:
        tau_s: One-way network latency, shape (roots, cells), nan where there is no arc.
        prefill_s_per_token: Shape (cells,).
        decode_s_per_token: Shape (cells,).
        live_servers: Per cell ((time, live count from that instant on), ...), the first at 0.
        decode_slots: Pooled slots of one server, over all its decode engines.
        queue_limit: Requests waiting or running on one server at which it is full.
        router_delay_s: Time a request spends in the root router.
        probe_interval_s: Time between two emissions of a cell.
        control_interval_s: Time between two decisions.
        mechanisms: What else there is.
    """

    tau_s: Floats
    prefill_s_per_token: Floats
    decode_s_per_token: Floats
    live_servers: tuple[tuple[tuple[float, int], ...], ...]
    decode_slots: int
    queue_limit: int
    router_delay_s: float
    probe_interval_s: float
    control_interval_s: float
    mechanisms: Mechanisms = field(default_factory=Mechanisms)


@dataclass(frozen=True)
class Requests:
    """What is offered: columns of equal length, sorted by root, then by arrival time.

    ``session``, ``session_hash`` (-1 without a session) and ``prefix_tokens`` are of sessions.
    """

    root: Ints
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    u_route: Floats
    u_leaf: Floats
    session: Ints | None = None
    session_hash: Ints | None = None
    prefix_tokens: Ints | None = None


@dataclass(eq=False)
class Request:
    """One request on its way; what it did last, where clients try again.

    ``key`` orders the sends of all roots and is what hashes draw by, ``replica`` is the leaf
    router's that it was sent to, ``hit`` counts the prompt tokens that its server had cached. A
    response comes to the root at ``comes_s``; a final one is the answer.
    """

    index: int
    root: int
    arrival_s: float
    prompt: int
    output: int
    u_route: float
    u_leaf: float
    session: int = -1
    session_hash: int = -1
    prefix: int = 0
    tries: int = 0
    number: int = -1
    key: int = -1
    sent_s: float = math.nan
    cell: int = -1
    replica: int = 0
    leaf_s: float = math.nan
    server: int = -1
    hit: int = 0
    rif_there: float = math.nan
    first_token_s: float = math.nan
    done_s: float = math.nan
    failed_s: float = math.nan
    comes_s: float = math.nan
    answer_s: float = math.nan
    kind: str | None = None

    @property
    def left_s(self) -> float:
        """When its response left the cell."""
        return self.done_s if math.isnan(self.failed_s) else self.failed_s


@dataclass(frozen=True)
class View:
    """What roots know at a decision instant, and the books of the interval that ends there.

    Arrays have shape (roots, cells) and are zero where there is no arc. ``rif``, ``servers``,
    ``received``, ``error_rate``, ``rtt_s``, ``model`` (roots, cells, 4) and ``backlog`` (roots,
    cells, 2) are those of the probe held, which left the cell at ``emitted_s``; ``sent``,
    ``answered`` (errors included) and ``errors`` are the root's own counts so far,
    ``interval_sent`` those of the interval. ``in_system_integral`` is in request seconds;
    ``rejected`` counts the errors of the interval: at leaves, or where clients try again those that
    are final; ``arrived`` counts the requests that reached a root so far, ``resent`` those sent
    again, ``messages`` those of telemetry, and ``kinds`` the measured errors so far.
    """

    time_s: float
    rif: Ints
    servers: Ints
    received: Ints
    error_rate: Floats
    emitted_s: Floats
    rtt_s: Floats
    model: Floats
    backlog: Ints
    aversion: Floats
    sent: Ints
    answered: Ints
    errors: Ints
    interval_sent: Ints
    in_system_integral: float
    rejected: int
    arrived: int
    resent: int
    messages: int
    kinds: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """Request columns in the order of the input, and one view per decision instant, both ends.

    Columns: ``cell``, ``server`` (-1 for an error), ``leaf_s``, ``first_token_s``, ``done_s``,
    ``failed_s``, ``answer_s``, ``error``, ``kind``; nan, -1 or None for what has not happened by
    the end of the last interval. ``answer_s`` is that of the final answer.
    """

    requests: dict[str, NDArray[Any]]
    views: list[View]


Decide = Callable[[int, list[View]], Decision]


@dataclass
class Books:
    """Counts that all parts of a run keep together."""

    arrived: int = 0
    resent: int = 0
    messages: int = 0
    left_with_error: int = 0
    late_errors: int = 0
    final_errors: int = 0
    kinds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
