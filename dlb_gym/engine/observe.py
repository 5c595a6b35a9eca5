"""The moving fields of an observation, for every arc of the batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym.engine.borrow import borrowed
from dlb_gym.engine.compile import entry, part
from dlb_gym.engine.curve import latencies
from dlb_gym.engine.layout import FloatArray

# Columns of an observation that move; `observation.FIELDS` holds the whole table.
COLUMNS = {
    "rtt": 1,
    "probe_age": 2,
    "rif": 3,
    "servers": 4,
    "request_weight": 5,
    "serving_latency": 6,
    "marginal_latency": 7,
    "model_alpha": 8,
    "model_beta": 9,
    "model_knee": 10,
    "model_smoothing": 11,
    "error_rate": 12,
    "aversion": 13,
    "outstanding": 14,
    "unseen": 15,
    "routing": 16,
    "arrival_load": 17,
    "capacity_load": 18,
    "prefill_backlog": 21,
    "decode_backlog": 22,
}
(
    RTT,
    PROBE_AGE,
    RIF,
    SERVERS,
    REQUEST_WEIGHT,
    SERVING_LATENCY,
    MARGINAL_LATENCY,
    ALPHA,
    BETA,
    KNEE,
    SMOOTHING,
    ERROR_RATE,
    AVERSION,
    OUTSTANDING,
    UNSEEN,
    ROUTING,
    ARRIVAL_LOAD,
    CAPACITY_LOAD,
    PREFILL_BACKLOG,
    DECODE_BACKLOG,
) = COLUMNS.values()


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
    seen = borrowed(view)
    finite = True
    replications, roots, cells, _ = cube.shape
    for r in range(replications):
        unit_s = seen.zero_load_time_s[r]
        for i in range(roots):
            sent = 0
            for j in range(cells):
                sent += seen.interval_sent[r, i, j]
            arrival_load = seen.arrival_rps[r, i] / seen.fleet_rps[r]
            for j in range(cells):
                if not seen.admissible[r, i, j]:
                    continue
                servers = seen.servers[r, i, j]
                weight = 1.0 / max(servers, 1)
                n = seen.rif[r, i, j] * weight
                model = seen.model[r, i, j]
                alpha = model[0] / unit_s
                beta = model[1] / unit_s
                latency, marginal = latencies(n, alpha, beta, model[2], model[3])
                own = seen.sent[r, i, j]
                share = seen.server_rps[r, j] / seen.fleet_rps[r]
                age = seen.probe_age_s[r, i, j] / unit_s
                error_rate = seen.error_rate[r, i, j]
                finite &= math.isfinite(latency + marginal + age + error_rate + arrival_load)
                arc = cube[r, i, j]
                arc[PROBE_AGE] = _saturated(age, high[PROBE_AGE])
                arc[RIF] = _saturated(n, high[RIF])
                arc[SERVERS] = _saturated(servers / seen.fleet_servers[r], high[SERVERS])
                arc[REQUEST_WEIGHT] = weight
                arc[SERVING_LATENCY] = _saturated(latency, high[SERVING_LATENCY])
                arc[RTT] = _saturated(seen.rtt_s[r, i, j] / unit_s, high[RTT])
                arc[ALPHA] = _saturated(alpha, high[ALPHA])
                arc[BETA] = _saturated(beta, high[BETA])
                arc[KNEE] = _saturated(model[2], high[KNEE])
                arc[SMOOTHING] = _saturated(model[3], high[SMOOTHING])
                arc[AVERSION] = seen.aversion[r, i, j]
                arc[MARGINAL_LATENCY] = _saturated(marginal, high[MARGINAL_LATENCY])
                arc[ERROR_RATE] = _saturated(error_rate, high[ERROR_RATE])
                outstanding = (own - seen.answered[r, i, j]) * weight
                arc[OUTSTANDING] = _saturated(outstanding, high[OUTSTANDING])
                arc[UNSEEN] = _saturated((own - seen.received[r, i, j]) * weight, high[UNSEEN])
                arc[ROUTING] = seen.interval_sent[r, i, j] / max(sent, 1)
                arc[ARRIVAL_LOAD] = _saturated(arrival_load, high[ARRIVAL_LOAD])
                backlog = seen.backlog_tokens[r, i, j]
                arc[PREFILL_BACKLOG] = _saturated(backlog[0] * weight, high[PREFILL_BACKLOG])
                arc[DECODE_BACKLOG] = _saturated(backlog[1] * weight, high[DECODE_BACKLOG])
                arc[CAPACITY_LOAD] = _saturated(servers * share, high[CAPACITY_LOAD])
    return finite
