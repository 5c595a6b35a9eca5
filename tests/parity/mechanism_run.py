"""One scenario in the simulator and in the reference: what each shows at every step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlb_gym.engine import extras, layout
from dlb_gym.scenario import Scenario
from dlb_gym.simulator import Simulator
from dlb_gym.workload import Workload
from tests.parity.random_choices import in_force
from tests.parity.scenario_cases import random_decisions
from tests.reference import Decision, Result, Simulation
from tests.reference.described import Rounding, described, offered
from tests.reference.estimation import Fit

STEPS_TO_DRAIN = 20
Log = dict[str, NDArray[Any]]
EngineView = dict[str, Any]
"""Fields of the reference's views, as the simulator shows them after a step."""


class Both(NamedTuple):
    """What both showed: a view after every step, and the requests that were over by the last.

    ``fits`` are the models that the reference fitted, and the engine's.
    """

    engine_views: list[EngineView]
    engine_log: Log
    expected: Result
    expected_log: Log
    fits: list[Fit]


def play_both(scenario: Scenario, seed: int, rounded: Rounding | None = None) -> Both:
    """Plays an episode, and a little beyond its end, under decisions drawn from the seed.

    Args:
        scenario: The scenario.
        seed: Of the episode and the decisions.
        rounded: What the scenario's requests are rounded by, if they are.
    """
    span_s = scenario.warmup_s + scenario.settle_s + scenario.horizon_s
    num_steps = scenario.intervals(span_s) + STEPS_TO_DRAIN
    system, requests = described(scenario, seed), offered(scenario, seed, rounded)
    rng = np.random.default_rng(seed)
    decisions = random_decisions(rng, ~np.isnan(system.tau_s), num_steps)
    engine = _Engine(scenario, seed, rounded)
    for decision in decisions:
        engine.step(decision)
    mechanisms = replace(
        system.mechanisms, given_models=lambda cell, number: engine.models[cell, number]
    )
    simulation = Simulation(
        replace(system, mechanisms=mechanisms), requests, lambda step, _: decisions[step]
    )
    expected = simulation.run(num_steps)
    over = ~np.isnan(expected.requests["answer_s"])
    columns = expected.requests | {"root": requests.root, "arrival_s": requests.arrival_s}
    # The engine's column has the instant of the response, whatever it says.
    responded = np.where(np.isnan(columns["done_s"]), columns["failed_s"], columns["done_s"])
    columns["done_s"] = responded
    return Both(
        engine.views,
        _sorted(engine.log()),
        expected,
        _sorted({name: column[over] for name, column in columns.items()}),
        [] if simulation.estimator is None else simulation.estimator.fits,
    )


COURSE = ("root", "arrival_s", "cell", "server", "leaf_s", "done_s", "answer_s")
"""What both logs say of a request."""


def _sorted(log: Log) -> Log:
    """By root, arrival, and whatever else tells requests apart."""
    order = np.lexsort([log[name] for name in reversed(COURSE)])
    return {name: column[order] for name, column in log.items()}


class Rounded(Workload):
    """The requests of a scenario's first episode, rounded."""

    def __init__(self, scenario: Scenario, seed: int, rounded: Rounding) -> None:
        super().__init__(scenario, seed, 0)
        self._rounded = rounded

    def chunk(self, index: int) -> list[NDArray[np.float64]]:
        return [self._rounded(requests) for requests in super().chunk(index)]


class _Engine:
    """The simulator, step by step, with what it showed and the models that its leaves published."""

    def __init__(self, scenario: Scenario, seed: int, rounded: Rounding | None) -> None:
        self._simulator = Simulator(1, len(scenario.roots), len(scenario.cells), log=True)
        self._simulator.reset_row(0, scenario, seed, 0)
        if rounded is not None:
            self._simulator._workloads[0] = Rounded(scenario, seed, rounded)
        self._steps = 0
        self.views: list[EngineView] = []
        self.models: dict[tuple[int, int], tuple[float, ...]] = {}

    def step(self, decision: Decision) -> None:
        simulator = self._simulator
        simulator.follow(in_force(decision), np.zeros(1, dtype=np.int64))
        self._steps += 1
        simulator.advance(np.array([self._steps]))
        self.views.append(self._view())
        memory = simulator._extras
        if memory is not None:
            for cell, number in enumerate(memory.tally[0, :, extras.ROUND].tolist()):
                model = memory.models[0, cell, number % extras.MODEL_ROUNDS]
                self.models[cell, number] = tuple(model.tolist())

    def _view(self) -> EngineView:
        simulator = self._simulator
        view, truth, counts = simulator.view(), simulator.truth(), simulator.counts()
        fields = {
            name: np.copy(getattr(view, name)[0])
            for name in (
                "rif", "servers", "received", "error_rate", "rtt_s", "aversion", "sent", "answered",
                "interval_sent",
            )
        }  # fmt: skip
        emitted_s = simulator._state.held_time[0, ..., layout.HELD_EMITTED_S]
        optional = {} if counts is None else {
            "resent": int(counts.resent[0]), "messages": int(counts.messages[0])
        }  # fmt: skip
        return {
            **fields,
            **optional,
            "emitted_s": np.copy(emitted_s),
            "backlog": np.copy(view.backlog_tokens[0]),
            "model": np.where(view.admissible[0, ..., None], view.model[0], 0.0),
            "rejected": int(truth.rejected[0]),
            "arrived": int(simulator.books().arrived[0]),
            "kinds": tuple(simulator.measurements().errors_by_kind[0].tolist()),
            "in_system_integral": float(truth.in_system_s[0]),
        }

    def log(self) -> Log:
        return self._simulator.request_log(0)
