"""From SB3's model to what is saved: the acting half of the network and how it came about."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from agents.networks import WIDTH, ArcNetwork, MlpActor
from agents.saved_policy import MEAN, VARIANCE, Tensors
from dlb_gym.actions import LOGIT_SCALE
from dlb_gym.episodes import FixedScenarios, episode_source
from dlb_gym.observation import FIELD_NAMES
from dlb_gym.policy import TaskSpec
from dlb_gym.runs import package_version


def exported(
    model: PPO, statistics: VecNormalize, spec: TaskSpec, trained_on: Mapping[str, Any]
) -> tuple[dict[str, Any], Tensors]:
    """What `saved_policy.write_policy` takes: the description's content and the tensors.

    Args:
        model: Trained with logits on `spec`, its network one of `training.NETWORKS`.
        statistics: The running statistics that it was trained with.
        spec: Sizes of the task.
        trained_on: See `saved_policy.TrainedOn`.
    """
    network, tensors = _network(model)
    normalisation = None
    if statistics.norm_obs:
        running = statistics.obs_rms
        assert isinstance(running, RunningMeanStd)  # the observation is a Box
        normalisation = {"epsilon": statistics.epsilon, "clip": statistics.clip_obs}
        tensors |= {MEAN: running.mean, VARIANCE: running.var}
    content = {
        "network": network,
        "observation": {
            "fields": FIELD_NAMES,
            "num_roots": spec.num_roots,
            "num_cells": spec.num_cells,
        },
        "action": {"encoding": "logits", "scale": LOGIT_SCALE},
        "normalisation": normalisation,
        "trained_on": dict(trained_on),
        "versions": {
            "dlb-gym": package_version(),
            **{name: metadata.version(name) for name in ("numpy", "stable-baselines3", "torch")},
        },
    }
    return content, tensors


def systems_trained_on(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Names of the scenarios, or of the family, that an environment's keywords describe."""
    source = episode_source(
        *(environment.get(key) for key in ("scenario", "family", "changes", "trace", "rtt_csv"))
    )
    scenarios = source.scenarios if isinstance(source, FixedScenarios) else ()
    return {
        "scenarios": tuple(each.name for each in scenarios),
        "family": environment.get("family"),
        "reward": environment.get("reward", "latency"),
    }


def _network(model: PPO) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Architecture and weights of the actor."""
    trained: Any = model.policy.mlp_extractor
    if isinstance(trained, ArcNetwork):
        acting = trained.actor_state()
        architecture: dict[str, Any] = {"kind": "arc", "width": WIDTH}
    else:
        layers = [layer for layer in trained.policy_net if isinstance(layer, nn.Linear)]
        hidden = tuple(layer.out_features for layer in layers)
        action: Any = model.policy.action_net
        actor = MlpActor(layers[0].in_features, hidden, action.out_features)
        actor.hidden.load_state_dict(trained.policy_net.state_dict())
        actor.action.load_state_dict(action.state_dict())
        acting = actor.state_dict()
        architecture = {"kind": "mlp", "hidden": hidden}
    return architecture, {name: each.detach().cpu().numpy() for name, each in acting.items()}
