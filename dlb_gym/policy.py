"""What a policy is: an observation in, a decision out.

A policy is written over trailing axes, so the same lines serve one replication or a thousand, and
sums run from left to right (`reductions.ordered_sum`), so that batch size and padding never change
a bit of a decision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dlb_gym.decision import Array, Decision, Mask
from dlb_gym.observation import Observation
from dlb_gym.reductions import ordered_sum
from dlb_gym.scenario import Scenario

Information = Literal["static", "local", "central", "oracle"]
Encoding = Literal["weights", "logits"]


@dataclass(frozen=True)
class TaskSpec:
    """What a policy is told beforehand: the sizes. Everything else is a field it observes.

    Attributes:
        num_roots: Roots of a replication, padded ones included.
        num_cells: Cells of a replication, padded ones included.
        observation: Encodes and decodes the observation array.
        action: How an environment's actions are encoded; a `Decision` is not.
    """

    num_roots: int
    num_cells: int
    observation: Observation
    action: Encoding = "weights"


class Policy(ABC):
    """Base of every policy.

    Attributes:
        name: Label in results.
        information: `static`: decides once, from an episode's first observation. `local`: row i of
            the decision depends on row i of the observation. `central`: on other rows too.
            `oracle`: on what nobody could know, which `reveal` tells.
    """

    name: str
    information: Information
    num_replications: int = 0
    _spec: TaskSpec | None = None
    _seed: int = 0

    @property
    def spec(self) -> TaskSpec:
        """The task's sizes.

        Raises:
            ValueError: The policy was never reset.
        """
        if self._spec is None:
            raise ValueError(
                f"policy {self.name!r} knows no task yet; call reset(spec, num_replications, seed) "
                "or get it from baselines.make(name, env)"
            )
        return self._spec

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        """Start anew for a batch.

        Args:
            spec: The task's sizes.
            num_replications: Rows of the observations to come.
            seed: Seed of the policy's own randomness; row r uses seed + r.
        """
        self._spec, self.num_replications, self._seed = spec, num_replications, seed

    def restart(self, rows: Mask) -> None:  # noqa: B027 - a policy without memory has nothing to do
        """Forget the past of the rows whose episode starts anew, shape (n,)."""

    def reveal(self, scenarios: Sequence[Scenario]) -> None:  # noqa: B027 - for oracles alone
        """What the rows' episodes will be, before the first decision; for `oracle` policies.

        Args:
            scenarios: Of every row.
        """

    @abstractmethod
    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Decide for every replication.

        Args:
            observation: float32, shape (n, size), with the n of `reset`.
        """

    def predict(
        self,
        observation: NDArray[Any],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[np.float32], tuple[NDArray[Any], ...] | None]:
        """Stable-Baselines3's call, for environments with `weights` actions.

        The memory lives in the policy, not in `state`; a batch of another size starts anew.

        Args:
            observation: Shape (n, size), or (size,) for one replication.
            state: Handed back as it is.
            episode_start: Rows that begin an episode, shape (n,); None: none of them.
            deterministic: Ignored.

        Returns:
            The action, float32, shape (n, roots, cells) or (roots, cells), and `state`.

        Raises:
            ValueError: The policy was never reset, it decides by scores or a table, or the
                environment's actions are logits.
        """
        spec = self.spec
        if spec.action != "weights":
            raise ValueError(
                f"policy {self.name!r} answers with routing weights, and this environment's "
                f'actions are {spec.action}; make the environment with action="weights"'
            )
        given = np.asarray(observation, dtype=np.float32)
        batch = given.reshape(-1, given.shape[-1])
        if len(batch) != self.num_replications:
            self.reset(spec, len(batch), self._seed)
        if episode_start is not None and np.any(episode_start):
            starts = np.asarray(episode_start, dtype=np.bool_)
            self.restart(np.broadcast_to(starts, (len(batch),)))
        routing = self.act(batch).routing
        if routing is None:
            raise ValueError(
                f"policy {self.name!r} decides by scores or a table, which no `weights` action can "
                "say; evaluate it with dlb_gym.evaluation or choose its variant without `-score`, "
                "if it has one"
            )
        action = routing.astype(np.float32)
        return (action[0] if given.ndim == 1 else action), state

    def fields(self, observation: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Named arrays (n, roots, cells) of an observation.

        Raises:
            ValueError: The batch is not the one of `reset`.
        """
        if observation.ndim != 2 or len(observation) != self.num_replications:
            raise ValueError(
                f"policy {self.name!r} was reset for {self.num_replications} replications and got "
                f"an observation of shape {observation.shape}; call reset for another batch"
            )
        return self.spec.observation.decode(observation)


def task_spec_of(env: object) -> TaskSpec:
    """The `task_spec` of an environment: Gymnasium, its vector form, or SB3's; wrapped or not.

    Raises:
        ValueError: No layer of the environment has one.
    """
    found = [getattr(layer, "task_spec", None) for layer in (env, getattr(env, "unwrapped", None))]
    get_attr = getattr(env, "get_attr", None)
    if found == [None, None] and callable(get_attr):
        try:
            found = list(get_attr("task_spec"))
        except AttributeError:  # what a batch of foreign environments answers
            found = []
    for spec in found:
        if isinstance(spec, TaskSpec):
            return spec
    raise ValueError(
        f"{type(env).__name__} has no attribute `task_spec`; "
        "pass a DLB-v0 environment or a TaskSpec"
    )


def project_to_simplex(values: Array, admissible: Mask) -> Array:
    """Euclidean projection of every row on the simplex over its arcs.

    x_j = max(y_j - theta, 0) with sum_j x_j = 1 (theory.md section 1, equation (2)). With y sorted
    downwards, theta = max over r of (y_1 + ... + y_r - 1) / r: sorting makes it independent of the
    order of the cells. Rows are shifted to a maximum of 0 first, which changes nothing and keeps
    the sum exact for values of any size; theta is then at least -1, so entries below are as good
    as -2, and so are cells that are no arc.

    Args:
        values: Finite on the arcs, shape (..., cells).
        admissible: Arcs, same shape. A row without any becomes zero.

    Returns:
        Shape (..., cells).
    """
    height = np.where(admissible, values, -np.inf)
    top = np.max(height, axis=-1, keepdims=True)
    height = np.maximum(height - np.where(np.isneginf(top), 0.0, top), -2.0)
    ranked = np.sort(height, axis=-1)[..., ::-1]
    counts = np.arange(1, values.shape[-1] + 1)
    theta = np.max((np.add.accumulate(ranked, axis=-1) - 1.0) / counts, axis=-1, keepdims=True)
    return np.where(admissible, np.maximum(height - theta, 0.0), 0.0)


def proportional(weights: Array, admissible: Mask) -> Array:
    """Rows proportional to the weights of their arcs; equal where those are all zero.

    Args:
        weights: At least 0 and finite on the arcs, shape (..., cells).
        admissible: Arcs, same shape. A row without any becomes zero.

    Raises:
        ValueError: A weight is negative, NaN or infinite.
    """
    mass = np.where(admissible, weights, 0.0)
    with np.errstate(over="ignore"):  # refused below
        total = ordered_sum(mass, keepdims=True)
    if mass.min(initial=0.0) < 0.0 or not np.isfinite(total).all():
        bad = np.argwhere((mass < 0.0) | ~np.isfinite(mass))
        place = f"entry {tuple(bad[0].tolist())} is not" if len(bad) else "a row's sum overflows"
        raise ValueError(f"routing weights must be finite and at least 0; {place}; clip them")
    if not total.all():
        mass = np.where(total > 0.0, mass, admissible)
        total = np.maximum(ordered_sum(mass, keepdims=True), np.finfo(np.float64).tiny)
    return mass / total


def split_ties(cost: Array, admissible: Mask) -> Array:
    """All of a row to its arc of least cost; arcs that tie exactly share equally.

    Args:
        cost: Not NaN on the arcs, shape (..., cells).
        admissible: Arcs, same shape. A row without any becomes zero.
    """
    masked = np.where(admissible, cost, np.inf)
    least = np.minimum.reduce(masked, axis=-1, keepdims=True)
    tied = admissible & (masked == least)
    shares: Array = tied / np.maximum(np.add.reduce(tied, axis=-1, keepdims=True, dtype=np.intp), 1)
    return shares
