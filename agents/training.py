"""PPO on DLB-v0's native batch, in resumable steps.

Rows' episodes are keyed by seeds below `runs.FIRST_HELD_OUT_SEED`, so that no evaluation
sees a training episode. The s-th start of a training (s = 0, then one more after every kill) takes
the seeds from `seed + s * num_envs` on: a resumed training goes on with new requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecNormalize

from agents.arc_policy import ArcPolicy
from agents.checkpoints import State, read_model, read_state, read_statistics, write_checkpoint
from agents.exporting import exported, systems_trained_on
from agents.run_folders import CHECKPOINTS, latest_checkpoint
from agents.shared_requests import SharedRequests
from dlb_gym.aside import clear_parts
from dlb_gym.runs import FIRST_HELD_OUT_SEED
from dlb_gym.sb3 import DLBVecEnv

OnRollout = Callable[[int, float], None]

NETWORKS: Mapping[str, tuple[type[ArcPolicy] | str, bool]] = {
    "arc": (ArcPolicy, False),
    "mlp": ("MlpPolicy", True),
}
"""Name -> SB3 policy, and whether observations are normalised by running statistics."""


@dataclass(frozen=True)
class Training:
    """A training.

    Attributes:
        environment: Keywords of `DLBVecEnv`, JSON values: scenario, family, changes.
        network: `arc` (shared by all arcs, see `networks`) or `mlp` (SB3's, 64 x 64).
        steps: Environment steps in all.
        seed: Of weights, actions and episodes.
        num_envs: Rows of the batch.
        copies: Rows that meet the same requests, see `shared_requests`; divides num_envs.
        rollout_steps: Intervals of a rollout per row.
        batch_size: Samples of a gradient step.
        epochs: Passes over a rollout.
        learning_rate: At the start; it falls to a tenth of it linearly.
        gamma: Discount per interval.
        gae_lambda: Of generalised advantage estimation.
        action_std: Standard deviation of actions at the start; times 8 in logits.
        clip_range: Of PPO's ratio, which is one number for all arcs together.
        noise_intervals: The noise of the `arc` network's actions is drawn anew after so many
            intervals: an effect that takes a second to show must not be averaged away.
        checkpoint_steps: A checkpoint after at least this many steps.

    Raises:
        ValueError: The network is unknown, a number is not positive, or the seed would reach the
            held-out ones.
    """

    environment: Mapping[str, Any] = field(default_factory=dict)
    network: str = "arc"
    steps: int = 250_000
    seed: int = 0
    num_envs: int = 32
    copies: int = 8
    rollout_steps: int = 64
    batch_size: int = 1024
    epochs: int = 5
    learning_rate: float = 3e-3
    gamma: float = 0.95
    gae_lambda: float = 0.9
    action_std: float = 0.04
    clip_range: float = 0.3
    noise_intervals: int = 16
    checkpoint_steps: int = 20_000

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise ValueError(
                f"network = {self.network!r} is unknown; choose one of {', '.join(NETWORKS)}"
            )
        for key in (
            "steps",
            "num_envs",
            "copies",
            "rollout_steps",
            "batch_size",
            "epochs",
            "checkpoint_steps",
        ):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} = {getattr(self, key)} must be at least 1")
        if self.num_envs % self.copies:
            raise ValueError(f"copies = {self.copies} must divide num_envs = {self.num_envs}")
        if not 0 <= self.seed < FIRST_HELD_OUT_SEED // 2:
            raise ValueError(
                f"seed = {self.seed} must be at least 0 and below {FIRST_HELD_OUT_SEED // 2}: "
                f"seeds from {FIRST_HELD_OUT_SEED} on are kept for evaluation"
            )

    def make_env(self, starts: int) -> SharedRequests:
        """The batch of the (starts + 1)-th start.

        Raises:
            ValueError: A keyword is not valid, or restarts have used up the training seeds.
        """
        first_seed = self.seed + starts * self.num_envs
        if first_seed + self.num_envs > FIRST_HELD_OUT_SEED:
            raise ValueError(f"training was started {starts} times; start it anew with --name")
        rows = self.num_envs // self.copies

        def make() -> DLBVecEnv:
            return DLBVecEnv(rows, seed=first_seed, action="logits", **self.environment)

        return SharedRequests(make, self.copies)


def train(training: Training, run: Path, on_rollout: OnRollout | None = None) -> Path:
    """Trains until `training.steps`, from the last checkpoint of the run if there is one.

    Args:
        training: What to train; the caller sees to it that a run keeps to one.
        run: Folder; gets `checkpoints` and `tensorboard`.
        on_rollout: Called after every rollout with the steps so far and its mean reward.

    Returns:
        The last checkpoint.

    Raises:
        CheckpointError: The last checkpoint cannot be read or is of other sizes.
        ValueError: A keyword of the environment is not valid.
    """
    torch.set_num_threads(1)  # a second thread waits for the first far longer than it helps
    clear_parts(run / CHECKPOINTS)
    last = latest_checkpoint(run)
    state = None if last is None else read_state(last)
    if last is not None and state is not None and state.steps >= training.steps:
        return last
    starts = 0 if state is None else state.starts
    env = training.make_env(starts)
    if last is None or state is None:
        venv = _normalised(training, env)
        model = _new_model(training, venv)
        curve: list[tuple[int, float]] = []
    else:
        venv = read_statistics(last, env)
        model = read_model(last, venv)
        curve = list(state.curve)
    keeper = _Keeper(
        training, run, env, venv, curve, on_rollout or (lambda steps, reward: None), starts + 1
    )
    model.set_logger(configure(str(run / "tensorboard"), ["tensorboard"]))
    model.learn(training.steps - model.num_timesteps, callback=keeper, reset_num_timesteps=False)
    return keeper.save()


def _normalised(training: Training, env: SharedRequests) -> VecNormalize:
    normalises_observation = NETWORKS[training.network][1]
    return VecNormalize(env, norm_obs=normalises_observation, gamma=training.gamma)


def _new_model(training: Training, venv: VecNormalize) -> PPO:
    policy, _ = NETWORKS[training.network]
    rate = training.learning_rate
    return PPO(
        policy,
        venv,
        learning_rate=lambda remaining: rate * (0.1 + 0.9 * remaining),
        n_steps=training.rollout_steps,
        batch_size=min(training.batch_size, training.rollout_steps * training.num_envs),
        n_epochs=training.epochs,
        gamma=training.gamma,
        gae_lambda=training.gae_lambda,
        clip_range=training.clip_range,
        use_sde=training.network == "arc",
        sde_sample_freq=training.noise_intervals,
        policy_kwargs={"log_std_init": math.log(training.action_std)},
        seed=training.seed,
        device="cpu",
    )


class _Keeper(BaseCallback):
    """Watches rollouts and writes checkpoints between an update and the next rollout."""

    def __init__(
        self, training: Training, run: Path, env: SharedRequests, venv: VecNormalize,
        curve: list[tuple[int, float]], on_rollout: OnRollout, starts: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self._training, self._run, self._env, self._venv = training, run, env, venv
        self._curve, self._on_rollout, self._starts = curve, on_rollout, starts
        self._systems = systems_trained_on(training.environment)
        self._saved_at = curve[-1][0] if curve else 0
        self._total, self._count = 0.0, 0

    def _on_step(self) -> bool:
        self._total += self._env.mean_reward
        self._count += 1
        return True

    def _on_rollout_end(self) -> None:
        reward = self._total / self._count
        self._total, self._count = 0.0, 0
        self._curve.append((self.num_timesteps, reward))
        self.logger.record("rollout/reward", reward)
        self._on_rollout(self.num_timesteps, reward)

    def _on_rollout_start(self) -> None:
        if self.num_timesteps - self._saved_at >= self._training.checkpoint_steps:
            self.save()

    def save(self) -> Path:
        """Writes a checkpoint of the present."""
        self._saved_at = self.num_timesteps
        model: Any = self.model
        trained_on = self._systems | {"seed": self._training.seed, "steps": self.num_timesteps}
        return write_checkpoint(
            self._run,
            model,
            self._venv,
            State(self.num_timesteps, self._starts, tuple(self._curve)),
            exported(model, self._venv, self._env.task_spec, trained_on),
        )
