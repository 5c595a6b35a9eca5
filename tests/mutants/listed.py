"""All mutants."""

from __future__ import annotations

from tests.mutants import (
    of_batching,
    of_demand,
    of_engine,
    of_equilibrium,
    of_fluid,
    of_inputs,
    of_judging,
    of_laws,
    of_mechanisms,
    of_policies,
    of_rates,
    of_stability,
    of_task,
    of_telemetry,
)

MUTANTS = (
    *of_engine.MUTANTS,
    *of_telemetry.MUTANTS,
    *of_mechanisms.MUTANTS,
    *of_batching.MUTANTS,
    *of_inputs.MUTANTS,
    *of_demand.MUTANTS,
    *of_rates.MUTANTS,
    *of_stability.MUTANTS,
    *of_task.MUTANTS,
    *of_judging.MUTANTS,
    *of_policies.MUTANTS,
    *of_laws.MUTANTS,
    *of_equilibrium.MUTANTS,
    *of_fluid.MUTANTS,
)
