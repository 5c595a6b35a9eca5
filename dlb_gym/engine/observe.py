"""The moving fields of an observation, for every arc of the batch.

The latency and marginal latency of `latency_model.py` are stated again here, for one arc at a time;
a test holds both equal. With u = (n - n0) / s and d = e^-|u|:

    l = alpha + beta s (log1p(d) + max(u, 0))
    H = alpha - beta n0 sigma(u) + beta s (log1p(d) + |u| d / (1 + d)),   f = l^2 / H
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym.engine.borrow import borrowed
from dlb_gym.engine.compile import entry, part
from dlb_gym.engine.layout import FloatArray

# Columns of an observation that move; `observation.FIELDS` holds the whole table.
COLUMNS = {
    "probe_age": 2,
    "rif": 3,
    "servers": 4,
    "request_weight": 5,
    "serving_latency": 6,
    "marginal_latency": 7,
    "error_rate": 12,
    "outstanding": 14,
    "unseen": 15,
    "routing": 16,
    "arrival_load": 17,
    "capacity_load": 18,
}
(
    PROBE_AGE,
    RIF,
    SERVERS,
    REQUEST_WEIGHT,
    SERVING_LATENCY,
    MARGINAL_LATENCY,
    ERROR_RATE,
    OUTSTANDING,
    UNSEEN,
    ROUTING,
    ARRIVAL_LOAD,
    CAPACITY_LOAD,
) = COLUMNS.values()


@part
def _latencies(
    n: float, alpha: float, beta: float, knee: float, smoothing: float
) -> tuple[float, float]:
    """Serving latency and marginal latency at n requests per server."""
    u = (n - knee) / smoothing
    size = abs(u)
    decay = math.exp(-size)
    tail = math.log1p(decay)
    major = 1.0 / (1.0 + decay)
    minor = decay * major
    logistic = major if u > 0.0 else minor
    bend = beta * smoothing
    latency = alpha + bend * (tail + max(u, 0.0))
    headroom = alpha - beta * knee * logistic + bend * (tail + size * minor)
    return latency, latency * latency / headroom


@part
def _saturated(value: float, high: float) -> float:
    """At most `high`; NaN stays NaN."""
    return high if value > high else value


@entry
def encode(view: Any, high: FloatArray, cube: NDArray[np.float32]) -> bool:
    """Writes the moving fields of a view into an observation that holds the constant ones.

    Args:
        view: `views.View`.
        high: (fields,) upper bounds; what exceeds them saturates.
        cube: (n, R, C, fields), zero where there is no arc.

    Returns:
        Whether every number written is finite.
    """
    view = borrowed(view)
    finite = True
    replications, roots, cells, _ = cube.shape
    for r in range(replications):
        unit_s = view.zero_load_time_s[r]
        for i in range(roots):
            sent = 0
            for j in range(cells):
                sent += view.interval_sent[r, i, j]
            arrival_load = view.arrival_rps[r, i] / view.fleet_rps[r]
            for j in range(cells):
                if not view.admissible[r, i, j]:
                    continue
                servers = view.servers[r, i, j]
                weight = 1.0 / max(servers, 1)
                n = view.rif[r, i, j] * weight
                model = view.model[r, j]
                latency, marginal = _latencies(
                    n, model[0] / unit_s, model[1] / unit_s, model[2], model[3]
                )
                own = view.sent[r, i, j]
                share = view.server_rps[r, j] / view.fleet_rps[r]
                age = view.probe_age_s[r, i, j] / unit_s
                error_rate = view.error_rate[r, i, j]
                finite &= math.isfinite(latency + marginal + age + error_rate + arrival_load)
                arc = cube[r, i, j]
                arc[PROBE_AGE] = _saturated(age, high[PROBE_AGE])
                arc[RIF] = _saturated(n, high[RIF])
                arc[SERVERS] = _saturated(servers / view.fleet_servers[r], high[SERVERS])
                arc[REQUEST_WEIGHT] = weight
                arc[SERVING_LATENCY] = _saturated(latency, high[SERVING_LATENCY])
                arc[MARGINAL_LATENCY] = _saturated(marginal, high[MARGINAL_LATENCY])
                arc[ERROR_RATE] = _saturated(error_rate, high[ERROR_RATE])
                outstanding = (own - view.answered[r, i, j]) * weight
                arc[OUTSTANDING] = _saturated(outstanding, high[OUTSTANDING])
                arc[UNSEEN] = _saturated((own - view.received[r, i, j]) * weight, high[UNSEEN])
                arc[ROUTING] = view.interval_sent[r, i, j] / max(sent, 1)
                arc[ARRIVAL_LOAD] = _saturated(arrival_load, high[ARRIVAL_LOAD])
                arc[CAPACITY_LOAD] = _saturated(servers * share, high[CAPACITY_LOAD])
    return finite
