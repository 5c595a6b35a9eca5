"""Random systems, requests and decisions for the parity tests, drawn from a seed."""

from __future__ import annotations

import numpy as np

from tests.parity.random_choices import random_decision
from tests.reference import Decision, Requests, System


def random_system(rng: np.random.Generator) -> System:
    """1-4 roots, 1-4 cells, some arcs missing, outages, equal latencies among them."""
    roots, cells = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    tau_s = rng.choice([0.0, 0.0125, 0.02, 0.11], size=(roots, cells))
    tau_s = np.where(rng.random((roots, cells)) < 0.5, tau_s, rng.uniform(0, 0.2, (roots, cells)))
    tau_s[rng.random((roots, cells)) < 0.2] = np.nan
    tau_s[np.arange(roots), rng.integers(0, cells, roots)] = 0.03
    live = tuple(
        ((0.0, int(k)), (2.0, max(1, int(k) // 2)), (4.1, int(k)))
        for k in rng.integers(1, 7, cells)
    )
    return System(
        tau_s=tau_s,
        prefill_s_per_token=2e-4 * rng.lognormal(0, 0.3, cells),
        decode_s_per_token=5e-3 * rng.lognormal(0, 0.3, cells),
        live_servers=live,
        decode_slots=int(rng.choice([1, 4, 8])),
        queue_limit=int(rng.choice([1, 4, 32])),
        router_delay_s=5e-4,
        probe_interval_s=float(rng.choice([0.005, 0.05, 0.3])),
        control_interval_s=0.1,
    )


def random_requests(rng: np.random.Generator, system: System, horizon_s: float) -> Requests:
    """Poisson arrivals, half of them rounded to whole hundredths so that instants coincide."""
    roots = system.tau_s.shape[0]
    servers = sum(schedule[0][1] for schedule in system.live_servers)
    counts = rng.poisson(servers * 8.0 * horizon_s * rng.uniform(0.3, 1.2) / roots, roots)
    arrival_s = rng.uniform(0, horizon_s, counts.sum())
    rounded = rng.random(len(arrival_s)) < 0.5
    arrival_s[rounded] = np.round(arrival_s[rounded], 2)
    root = np.repeat(np.arange(roots), counts)
    order = np.lexsort((arrival_s, root))
    size = len(root)
    return Requests(
        root=root,
        arrival_s=arrival_s[order],
        prompt_tokens=rng.integers(0, 1000, size),
        output_tokens=rng.integers(0, 400, size),
        u_route=rng.random(size),
        u_leaf=rng.random(size),
    )


def random_decisions(
    rng: np.random.Generator, system: System, modes: list[str], num_steps: int
) -> list[Decision]:
    """One decision a step, modes mixed."""
    admissible = ~np.isnan(system.tau_s)
    return [random_decision(rng, admissible, str(rng.choice(modes))) for _ in range(num_steps)]
