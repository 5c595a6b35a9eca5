"""The paper's three route costs (section 3.2.3) and one of the tail, read from observed fields.

    rif       c_ij = N_j / k_j
    latency   c_ij = l_j(N_j) + 2 tau_ij
    gradient  c_ij = 1 / mu_j'(N_j) + 2 tau_ij
    p95       c_ij = q_j(N_j) + 2 tau_ij

N_j, k_j and the latency model are those of the probe held, all costs but the first in zero-load
times. q_j is the softplus of the 95th percentile of the serving latency, calibrated offline as l_j
is, and so known where cells estimate their mean. It is ours: the paper judges policies by
percentiles, and its costs read means. An equilibrium of tails is far from one that is best for
them: cells' tails lie twice as far apart as their means, so fast cells fill up past their knees. At
80 % in `global_six`, decisions every 20 ms, Disc's 95th percentile is 5 % above the split by
capacity's, and Flow's 16 % (disc-latency: 2.5 % below).

None of them reads an arrival rate. Two comparators' costs are the gradient with another network
term: `marginal` with none (GMSR), `one-way` with tau_ij (DGD-LB).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dlb_gym.decision import Array
from dlb_gym.latency_model import LatencyModel, OperatingPoint
from dlb_gym.scenario_checks import nearest_key

CostName = Literal["rif", "latency", "gradient", "marginal", "one-way", "p95"]
Fields = Mapping[str, NDArray[np.float32]]


def require_cost(name: str) -> CostName:
    """The name of a cost.

    Raises:
        ValueError: There is no such cost; names the nearest.
    """
    names: tuple[CostName, ...] = get_args(CostName)
    for known in names:
        if name == known:
            return known
    raise ValueError(
        f"cost = {name!r} is unknown{nearest_key(name, names)}; choose one of {', '.join(names)}"
    )


def cost(name: CostName, fields: Fields) -> Array:
    """c_ij of every arc, shape (n, roots, cells); meaningless where no arc is."""
    if name == "rif":
        return fields["rif"].astype(np.float64)
    if name == "p95":
        tail = tail_model(fields).at(fields["rif"].astype(np.float64)).latency
        return np.asarray(tail + fields["rtt"])
    serving = fields["serving_latency" if name == "latency" else "marginal_latency"]
    if name == "marginal":
        return serving.astype(np.float64)
    network = 0.5 * fields["rtt"] if name == "one-way" else fields["rtt"]
    costs: Array = np.add(serving, network, dtype=np.float64)
    return costs


def cost_slope(name: CostName, fields: Fields, point: OperatingPoint) -> Array:
    """Derivative of the cost with respect to n_j = N_j / k_j: 1, l'(n), f'(n) or q'(n).

    Args:
        name: The cost.
        fields: What is observed.
        point: The cells' latency models at n_j, shape (n, roots, cells).
    """
    slope: Array
    if name == "rif":
        slope = np.ones_like(point.n)
    elif name == "p95":
        slope = tail_model(fields).at(point.n).latency_slope
    else:
        slope = point.latency_slope if name == "latency" else point.marginal_slope
    return slope


def latency_model(fields: Fields) -> LatencyModel:
    """Latency models of the probes held, times in zero-load times; all ones where no arc is."""
    return _model("model", fields)


def tail_model(fields: Fields) -> LatencyModel:
    """Models of the 95th percentile of the latency, as `latency_model`."""
    return _model("tail", fields)


def _model(kind: str, fields: Fields) -> LatencyModel:
    no_arc = np.subtract(1.0, fields["admissible"], dtype=np.float64)  # where all fields are 0
    alpha, beta, knee, smoothing = (
        np.add(fields[f"{kind}_{name}"], no_arc, dtype=np.float64)
        for name in ("alpha", "beta", "knee", "smoothing")
    )
    return LatencyModel(alpha, beta, knee, smoothing)
