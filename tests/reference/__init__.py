"""A plain event-driven reference of the simulated system, for one replication.

The system of the documentation is modelled literally: one list of events, dictionaries, queues,
counters that events change. Nothing here is fast. It exists to be compared with the engine request
by request, with exact equality of times, and to say in words what the engine does in columns. Every
time is formed by one fixed expression::

    leaf    = (arrival + router_delay) + tau
    prefill = max(leaf, engine free) + prompt_tokens * prefill_s_per_token
    done    = max(prefill, earliest slot free) + output_tokens * decode_s_per_token
    answer  = done + tau            (an error: leaf + tau)
    step k  = k * h,  probe m = m * p,  and probe m is held at t if m * p + tau <= t

Events of one instant take place in the order of the ``Rank`` members. Because a decision is the
last thing to happen at its instant, a request that arrives at ``k * h`` still follows decision
``k - 1``; decision 0 alone precedes everything, so the first interval contains clock 0.

One module a mechanism: ``faults`` (journeys, dead replicas), ``leaves`` (what replicas know),
``servers`` and ``batching``, ``affinity``, ``aversion``, ``estimation``; ``root`` and ``cell`` use
them, ``autoscaler`` stands beside the cells, ``simulation`` runs all, ``described`` reads a
scenario and ``trace`` the trace that it names.
"""

from tests.reference.simulation import Simulation, simulate
from tests.reference.system import Decide, Mechanisms, Requests, Result, System, View
from tests.reference_choices import Decision

__all__ = [
    "Decide",
    "Decision",
    "Mechanisms",
    "Requests",
    "Result",
    "Simulation",
    "System",
    "View",
    "simulate",
]
