"""The one list of baselines: name -> class and keywords."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

from dlb_gym.policy import Policy, TaskSpec, task_spec_of
from dlb_gym.scenario_checks import nearest_key


class Entry(NamedTuple):
    """How a policy is made, as an evaluation `Run` states it.

    Attributes:
        policy: `module:attribute` of the class.
        keywords: Its arguments, JSON values.
    """

    policy: str
    keywords: Mapping[str, Any]


BASELINES: Mapping[str, Entry] = MappingProxyType(
    {
        "random": Entry("baselines.static:WeightedRandom", {}),
        "capacity": Entry("baselines.static:CapacitySplit", {}),
        "mnlb": Entry("baselines.mnlb:MNLB", {}),
        "mnlb-95": Entry("baselines.mnlb:MNLB", {"headroom": 0.95}),
        "disc-rif": Entry("baselines.discrete:Discrete", {"cost": "rif"}),
        "disc-latency": Entry("baselines.discrete:Discrete", {"cost": "latency"}),
        "disc-gradient": Entry("baselines.discrete:Discrete", {"cost": "gradient"}),
        "disc-rif-score": Entry("baselines.discrete:DiscreteScore", {"cost": "rif"}),
        "disc-latency-score": Entry("baselines.discrete:DiscreteScore", {"cost": "latency"}),
        "disc-gradient-score": Entry("baselines.discrete:DiscreteScore", {"cost": "gradient"}),
        "flow-rif": Entry("baselines.flow:Flow", {"cost": "rif"}),
        "flow-latency": Entry("baselines.flow:Flow", {"cost": "latency"}),
        "flow-gradient": Entry("baselines.flow:Flow", {"cost": "gradient"}),
        "gmsr": Entry("baselines.discrete:GMSR", {}),
        "dgd-lb": Entry("baselines.flow:DGD", {}),
        "nearest": Entry("baselines.static:Nearest", {}),
        "wrr": Entry("baselines.static:RoundRobin", {}),
        "fewest": Entry("baselines.queues:FewestConnections", {}),
        "weighted-fewest": Entry("baselines.queues:FewestConnections", {"weighted": True}),
        "jsq": Entry("baselines.queues:ShortestQueue", {}),
        "jiq": Entry("baselines.queues:IdleQueue", {}),
        "sed": Entry("baselines.queues:ShortestExpectedDelay", {}),
        "power-of-2-cells": Entry("baselines.queues:PowerOfCells", {}),
        "max-weight": Entry("baselines.queues:MaxWeight", {}),
        "jfsq": Entry("baselines.queues:FastestShortest", {}),
        "jfiq": Entry("baselines.queues:FastestIdle", {}),
        "waterfall-zone": Entry("baselines.waterfall:Waterfall", {"kind": "waterfall-zone"}),
        "waterfall-region": Entry("baselines.waterfall:Waterfall", {"kind": "waterfall-region"}),
        "spray-region": Entry("baselines.waterfall:Waterfall", {"kind": "spray-region"}),
        "spray-world": Entry("baselines.waterfall:Waterfall", {"kind": "spray-world"}),
        "static-optimum": Entry("baselines.optimum:StaticOptimum", {}),
        "maglev": Entry("baselines.peers.tables:Maglev", {}),
        "ecmp": Entry("baselines.peers.tables:EqualCostHashing", {}),
        "drill": Entry("baselines.peers.drill:Drill", {}),
        "prequal": Entry("baselines.peers.prequal:Prequal", {}),
        "c3": Entry("baselines.peers.c3:C3", {}),
        "skywalker-unqueued": Entry("baselines.peers.skywalker:SkyWalker", {}),
        "gorgo": Entry("baselines.peers.gorgo:Gorgo", {}),
        "predictive-disc-rif": Entry("baselines.predictive:PredictiveVector", {"cost": "rif"}),
        "predictive-disc-latency": Entry(
            "baselines.predictive:PredictiveVector", {"cost": "latency"}
        ),
        "predictive-disc-gradient": Entry(
            "baselines.predictive:PredictiveVector", {"cost": "gradient"}
        ),
        "predictive-disc-rif-score": Entry(
            "baselines.predictive:PredictiveDiscrete", {"cost": "rif"}
        ),
        "predictive-disc-latency-score": Entry(
            "baselines.predictive:PredictiveDiscrete", {"cost": "latency"}
        ),
        "predictive-disc-gradient-score": Entry(
            "baselines.predictive:PredictiveDiscrete", {"cost": "gradient"}
        ),
        "predictive-flow-rif": Entry("baselines.predictive:PredictiveFlow", {"cost": "rif"}),
        "predictive-flow-latency": Entry(
            "baselines.predictive:PredictiveFlow", {"cost": "latency"}
        ),
        "predictive-flow-gradient": Entry(
            "baselines.predictive:PredictiveFlow", {"cost": "gradient"}
        ),
        "predictive-softmin-rif": Entry("baselines.predictive:PredictiveSoftmin", {"cost": "rif"}),
        "predictive-softmin-latency": Entry(
            "baselines.predictive:PredictiveSoftmin", {"cost": "latency"}
        ),
        "predictive-softmin-gradient": Entry(
            "baselines.predictive:PredictiveSoftmin", {"cost": "gradient"}
        ),
        "dlb-auto": Entry("baselines.auto:Auto", {}),
        "predictive-auto": Entry("baselines.auto:PredictiveAuto", {}),
        "disc-p95": Entry("baselines.discrete:Discrete", {"cost": "p95"}),
        "flow-p95": Entry("baselines.flow:Flow", {"cost": "p95"}),
    }
)


def names() -> tuple[str, ...]:
    """Names of the baselines."""
    return tuple(BASELINES)


def entry(name: str) -> Entry:
    """The entry of a name.

    Raises:
        ValueError: There is no such baseline; names the nearest.
    """
    if name not in BASELINES:
        raise ValueError(
            f"baseline {name!r} is unknown{nearest_key(name, BASELINES)}; "
            f"choose one of {', '.join(BASELINES)}"
        )
    return BASELINES[name]


def make(name: str, env: object = None) -> Policy:
    """A baseline, ready for `predict` if an environment is given.

    Args:
        name: One of `names()`.
        env: A DLB-v0 environment (Gymnasium, vector or SB3, wrapped or not) or a `TaskSpec`.

    Raises:
        ValueError: Unknown name, or `env` is no DLB-v0 environment.
    """
    found = entry(name)
    module, _, attribute = found.policy.partition(":")
    policy: Policy = getattr(import_module(module), attribute)(**found.keywords)
    if env is not None:
        policy.reset(env if isinstance(env, TaskSpec) else task_spec_of(env), 1, 0)
    return policy
