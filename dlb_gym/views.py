"""What the simulator shows: the delayed view of the roots, and the truth."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class View(NamedTuple):
    """What roots know, in physical units; (n, R, C) unless said otherwise.

    Attributes:
        admissible: Arcs.
        rtt_s: Round trips.
        probe_age_s: Time since the probe held left its cell.
        rif: RIF in the probe held.
        servers: Live servers in it.
        received: Requests of this root received by the cell according to it.
        error_rate: Leaf's error rate in it.
        model: (n, R, C, 4) per-server latency model in it: alpha_s, beta_s, knee, smoothing.
        aversion: Probability of avoiding the cell.
        backlog_tokens: (n, R, C, 2) tokens to prefill and to decode in it, 0 if it has none.
        sent: Requests sent by this root.
        answered: Responses received by this root.
        interval_sent: Requests sent in the interval that just ended.
        arrival_rps: (n, R) exponential mean of the root's arrival rate.
        tail: (n, C, 4) the offline model of the 95th percentile of serving latency, as `model`.
        server_rps: (n, C) nominal rate of one server of the cell.
        fleet_rps: (n,) nominal rate of all servers at clock 0.
        fleet_servers: (n,) servers at clock 0.
        zero_load_time_s: (n,) Z.
        control_interval_s: (n,).
    """

    admissible: NDArray[np.bool_]
    rtt_s: FloatArray
    probe_age_s: FloatArray
    rif: IntArray
    servers: IntArray
    received: IntArray
    error_rate: FloatArray
    model: FloatArray
    aversion: FloatArray
    backlog_tokens: FloatArray
    sent: IntArray
    answered: IntArray
    interval_sent: IntArray
    arrival_rps: FloatArray
    tail: FloatArray
    server_rps: FloatArray
    fleet_rps: FloatArray
    fleet_servers: FloatArray
    zero_load_time_s: FloatArray
    control_interval_s: FloatArray


class Books(NamedTuple):
    """Where every request is, (n,) each.

    arrived = answered + errors + rif + to_cells + to_roots + retrying, at every step.
    """

    arrived: IntArray
    answered: IntArray
    errors: IntArray
    rif: IntArray
    to_cells: IntArray
    to_roots: IntArray
    retrying: IntArray


class Counts(NamedTuple):
    """What the mechanisms counted, (n,) each.

    Attributes:
        messages: Probes, answers to them and exchanges between replicas since clock 0.
        resent: Requests that clients sent again since clock 0.
        eligible: Measured requests with a prefix.
        hits: Those whose server had kept some of it.
        prompt_tokens: Prompt tokens of measured requests that a server took.
        saved_tokens: Those that the caches held.
    """

    messages: IntArray
    resent: IntArray
    eligible: FloatArray
    hits: FloatArray
    prompt_tokens: FloatArray
    saved_tokens: FloatArray


class Truth(NamedTuple):
    """The system as it is, after the last interval.

    Attributes:
        rif: (n, C) requests in flight.
        live_servers: (n, C).
        received: (n, R, C) requests that reached the cell's leaf so far.
        in_system_s: (n,) integral over the last interval of the requests that arrived at a root
            and were not answered there, request seconds.
        rejected: (n,) errors in the last interval: at leaves, or where clients try again those
            that are final.
        answered: (n,) answers that came in it.
        first_token_sum_s: (n,) their times to first token.
    """

    rif: IntArray
    live_servers: IntArray
    received: IntArray
    in_system_s: FloatArray
    rejected: IntArray
    answered: IntArray
    first_token_sum_s: FloatArray
