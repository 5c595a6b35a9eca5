"""The SimPy model and the reference describe one system: same requests, same times."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from benchmarks import simpy_model
from tests.reference import Decision, Requests, System, simulate

HORIZON_S = 20.0
ROUTING = np.array([[0.6, 0.3, 0.1], [0.0, 0.5, 0.5], [0.2, 0.0, 0.8]])


def _system() -> System:
    return System(
        tau_s=np.array([[0.0011, 0.021, 0.043], [np.nan, 0.0007, 0.034], [0.052, np.nan, 0.002]]),
        prefill_s_per_token=np.array([2.1e-4, 1.7e-4, 2.4e-4]),
        decode_s_per_token=np.array([4.7e-3, 5.3e-3, 5.9e-3]),
        live_servers=(((0.0, 3),), ((0.0, 3), (7.0, 2), (13.0, 3)), ((0.0, 4),)),
        decode_slots=8,
        queue_limit=32,
        router_delay_s=5e-4,
        probe_interval_s=5e-3,
        control_interval_s=0.1,
    )


def _requests(seed: int, rate_rps: float) -> Requests:
    """Poisson arrivals at three roots up to the horizon, tokens of the default shape."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rate_rps * HORIZON_S, size=3)
    total = int(counts.sum())
    return Requests(
        root=np.repeat(np.arange(3), counts),
        arrival_s=np.concatenate([np.sort(rng.uniform(0.0, HORIZON_S, n)) for n in counts]),
        prompt_tokens=20 + np.floor(rng.gamma(1.5, 320.0, total) + 0.5).astype(np.int64),
        output_tokens=10 + np.floor(rng.gamma(2.0, 95.0, total) + 0.5).astype(np.int64),
        u_route=rng.random(total),
        u_leaf=rng.random(total),
    )


def _shared(model: Any, whole: Any) -> dict[str, Any]:
    """What the model knows of a reference's data."""
    return {field.name: getattr(whole, field.name) for field in fields(model)}


@pytest.mark.parametrize(("rate_rps", "queue_limit"), [(8.0, 32), (24.0, 12)])
def test_simpy_and_the_reference_agree_on_every_request(rate_rps: float, queue_limit: int) -> None:
    system = replace(_system(), queue_limit=queue_limit)
    requests = _requests(7, rate_rps)
    decision = Decision("sample", routing=ROUTING)
    expected = simulate(system, requests, lambda *_: decision, 200).requests
    log = simpy_model.simulate(
        simpy_model.System(**_shared(simpy_model.System, system)),
        simpy_model.Requests(**_shared(simpy_model.Requests, requests)),
        ROUTING,
        20.0,
    )
    assert log.error.tolist() == expected["error"].tolist()
    assert expected["error"].any() == (queue_limit == 12)
    np.testing.assert_allclose(log.done_s, expected["done_s"], rtol=0.0, atol=1e-9)
    np.testing.assert_allclose(log.answer_s, expected["answer_s"], rtol=0.0, atol=1e-9)


def test_the_summary_counts_what_was_served_and_answered() -> None:
    # Two requests of 0.5 s prefill and 1 s decode on one server, 0.25 s away: answers at 2 s and
    # 2.5 s; the third comes back as an error, the fourth not before the horizon.
    system = simpy_model.System(
        tau_s=np.array([[0.25]]),
        prefill_s_per_token=np.array([0.5]),
        decode_s_per_token=np.array([0.25]),
        live_servers=(((0.0, 1),),),
        decode_slots=8,
        queue_limit=2,
        router_delay_s=0.0,
        probe_interval_s=0.125,
        control_interval_s=0.5,
    )
    arrival_s = np.array([0.0, 0.0, 0.0, 2.5])
    requests = simpy_model.Requests(
        root=np.zeros(4, np.int64),
        arrival_s=arrival_s,
        prompt_tokens=np.ones(4, np.int64),
        output_tokens=np.full(4, 4),
        u_route=np.zeros(4),
        u_leaf=np.zeros(4),
    )
    summary = simpy_model.run(system, requests, np.ones((1, 1)), 3.0)
    assert summary == simpy_model.Summary(answered=2, mean_latency_s=2.25)
