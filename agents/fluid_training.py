"""Analytic policy gradient: a routing network learns by back-propagation through the fluid model.

    python -m agents.fluid_training

Every iteration draws systems of the family `appendix_b`, lets the network route their fluids from
the stationary split by capacity on, and moves the weights down the gradient of

    mean over systems of  latency over the whole path / latency of the split,

through every decision, delay and queue on the way. Nothing is sampled within a path, and the
optimum is not used. Seeds are below `runs.FIRST_HELD_OUT_SEED`; `held_out` measures on those from
there on. Files: docs/training.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import tyro

from agents.fluid_acting import Acting, FluidView
from agents.networks import DESCENT_WIDTH, DescentActor
from agents.saved_policy import write_policy
from dlb_gym.actions import LOGIT_SCALE
from dlb_gym.bounds import best_routing
from dlb_gym.fluid import Dynamics, Fixed, Flow, FluidModel, FluidSystem
from dlb_gym.generator import MAX_CELLS, sample
from dlb_gym.latency_model import step_size
from dlb_gym.messages import whole
from dlb_gym.observation import FIELD_NAMES
from dlb_gym.runs import FIRST_HELD_OUT_SEED, package_version
from dlb_gym.scenario import Scenario
from dlb_gym.service_curves import SoftplusCells

Tensor = torch.Tensor
OnIteration = Callable[[int, float], None]

FAMILY = "appendix_b"
STEP_S = 0.1
"""Of the fluid: one control interval, and a tenth of what a request takes."""
UTILISATION = (0.4, 0.9)
LAST_S = 20.0
"""End of a held-out path that counts."""
ROUNDING = 1e-6
LAST_RATE = 0.1
"""Of the learning rate that the last iteration has."""
MOST_GRADIENT = 0.1
"""Norm to which gradients are clipped: on a path that oscillates they grow without bound."""


@dataclass(frozen=True)
class FluidTraining:
    """A training.

    Attributes:
        iterations: Steps of Adam.
        rows: Systems of an iteration, each another one.
        horizon_s: Length of a path.
        learning_rate: At the start; it falls linearly to a tenth.
        seed: Of weights and systems.

    Raises:
        ValueError: A number is out of range, or the seeds would reach the held-out ones.
    """

    iterations: int = 20
    rows: int = 8
    horizon_s: float = 30.0
    learning_rate: float = 0.03
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("iterations", "rows", "seed"):
            whole(key, getattr(self, key))
        for key in ("iterations", "rows", "horizon_s", "learning_rate"):
            if not 0 < getattr(self, key) < np.inf:
                raise ValueError(f"{key} = {getattr(self, key)} must be finite and above 0")
        if self.seed < 0 or self.first_system + self.iterations * self.rows > FIRST_HELD_OUT_SEED:
            raise ValueError(
                f"seed = {self.seed} must be at least 0, and (seed + 1) x iterations x rows at "
                f"most {FIRST_HELD_OUT_SEED}: systems from there on are kept for evaluation; lower "
                "it"
            )

    @property
    def first_system(self) -> int:
        """Seed of the first system; trainings of other seeds draw none of the same."""
        return self.seed * self.iterations * self.rows


class Batch(NamedTuple):
    """Fluids that start from the split by capacity at rest.

    Attributes:
        scenarios: One a row.
        model: Of them.
        view: What a network sees there.
        rif: N at rest, (rows, cells).
    """

    scenarios: Sequence[Scenario]
    model: FluidModel
    view: FluidView
    rif: Tensor

    @classmethod
    def of(cls, scenarios: Sequence[Scenario], step_s: float = STEP_S) -> Self:
        """Of steady scenarios without warm-up, for which the split is feasible."""
        system = FluidSystem.from_scenarios(scenarios)
        load_rps = (system.capacity_split() * system.rates_rps[..., None]).sum(dim=1)
        rif: Tensor = system.curves.rif_at(load_rps)
        return cls(scenarios, FluidModel(system, step_s), FluidView.of(scenarios, system), rif)

    @classmethod
    def drawn(cls, first_seed: int, rows: int) -> Self:
        """Systems of the seeds from `first_seed` on, at utilisations drawn from `UTILISATION`."""
        return cls.of([_drawn(first_seed + row) for row in range(rows)])

    def latency_s(self, dynamics: Dynamics, duration_s: float, since_s: float = 0.0) -> Tensor:
        """Mean end-to-end latency on the path that these dynamics take, (rows,)."""
        return self.model.run(dynamics, duration_s, rif=self.rif).latency_s(since_s)

    def split_latency_s(self) -> Tensor:
        """Of the split by capacity, which is where the path starts and rests, (rows,)."""
        return self.latency_s(Fixed(self.model.system.capacity_split()), self.model.step_s)


def _drawn(seed: int) -> Scenario:
    utilisation = float(np.random.default_rng(seed).uniform(*UTILISATION))
    return sample(FAMILY, seed, 0, {"warmup_s": 0.0, "demand.utilisation": utilisation})


def train(training: FluidTraining, on_iteration: OnIteration | None = None) -> DescentActor:
    """The trained network, in float64.

    Args:
        training: What to train.
        on_iteration: Called after each with its number from 1 and its loss.
    """
    torch.manual_seed(training.seed)
    actor = DescentActor(MAX_CELLS, MAX_CELLS).double()
    optimiser = torch.optim.Adam(actor.parameters())
    for number in range(training.iterations):
        done = number / training.iterations
        for group in optimiser.param_groups:
            group["lr"] = training.learning_rate * (1.0 - (1.0 - LAST_RATE) * done)
        batch = Batch.drawn(training.first_system + number * training.rows, training.rows)
        value = loss(actor, batch, training.horizon_s)
        optimiser.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(actor.parameters(), MOST_GRADIENT)
        optimiser.step()
        if on_iteration is not None:
            on_iteration(number + 1, float(value.detach()))
    return actor


def loss(actor: DescentActor, batch: Batch, horizon_s: float) -> Tensor:
    """Latency over the path, over the split's; mean of the systems."""
    latency_s = batch.latency_s(Acting(actor, batch.view), horizon_s)
    return (latency_s / batch.split_latency_s()).mean()


def held_out(
    policies: dict[str, Callable[[Batch], Dynamics]],
    rows: int,
    duration_s: float,
    last_s: float,
    first_seed: int = FIRST_HELD_OUT_SEED,
) -> dict[str, Tensor]:
    """Latency in the last seconds of a path over the optimum's, less 1, of held-out systems.

    Args:
        policies: Dynamics by name, made for the batch.
        rows: Number of systems.
        duration_s: Length of the path.
        last_s: Its part that counts.
        first_seed: Of the first system.
    """
    batch = Batch.drawn(first_seed, rows)
    best_s = torch.as_tensor(
        [each.router_delay_s + best_routing(each).latency_s for each in batch.scenarios],
        dtype=torch.float64,
    )
    with torch.no_grad():
        return {
            name: batch.latency_s(make(batch), duration_s, duration_s - last_s) / best_s - 1.0
            for name, make in policies.items()
        }


def flow_gradient(batch: Batch) -> Flow:
    """Flow on the gradient cost, its step by the working rule at the fluids' rest."""
    system, view = batch.model.system, batch.view
    curves = system.curves
    assert isinstance(curves, SoftplusCells)  # of scenarios
    point = curves.model.at(batch.rif / curves.servers)
    delay_s = torch.nan_to_num(system.request_delay_s + system.report_delay_s)

    def on_arcs(values: Tensor) -> Tensor:
        return values[:, None].expand_as(delay_s)

    eta = step_size(
        servers=on_arcs(curves.servers),
        rate=on_arcs(point.rate),
        rate_slope=on_arcs(point.rate_slope),
        cost_slope=on_arcs(point.marginal_slope),
        loop_delay=delay_s + 0.5 * view.interval_s,
        admissible=system.arcs,
        xp=torch,
    )
    return Flow("gradient", eta[..., 0], view.interval_s)


def exported(actor: DescentActor, training: FluidTraining) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `saved_policy.write_policy` takes: the description's content and the tensors."""
    content = {
        "network": {"kind": "descent", "width": DESCENT_WIDTH},
        "observation": {"fields": FIELD_NAMES, "num_roots": MAX_CELLS, "num_cells": MAX_CELLS},
        "action": {"encoding": "logits", "scale": LOGIT_SCALE},
        "normalisation": None,
        "trained_on": {
            "scenarios": (),
            "family": FAMILY,
            "reward": "latency",
            "seed": training.seed,
            "steps": training.iterations,
        },
        "versions": {
            "dlb-gym": package_version(),
            **{name: metadata.version(name) for name in ("numpy", "torch")},
        },
    }
    tensors = actor.state_dict().items()
    return content, {name: each.detach().float().cpu().numpy() for name, each in tensors}


@dataclass(frozen=True)
class Options:
    """Trains a routing network in the fluid model and measures it there on held-out systems.

    Writes policy.json and policy.safetensors; `python train.py evaluate --policies FOLDER` measures
    it on the event engine.
    """

    folder: Path = Path("runs/descent")
    """Where the policy goes; a folder that is empty or not there."""
    seed: int = 0
    """Of weights and systems."""
    iterations: int = FluidTraining.iterations
    """Steps of Adam."""
    systems: int = 50
    """Held-out systems."""
    first_seed: int = FIRST_HELD_OUT_SEED
    """Of the held-out systems; training uses those below the default."""
    duration: float = 120.0
    """Seconds of a held-out path, a multiple of 0.1 and at least 20; its last 20 count."""

    def check(self) -> None:
        """Refuses what would be found out after the training.

        Raises:
            ValueError: Names the option.
        """
        if self.systems < 1:
            raise ValueError(f"--systems {self.systems} must be at least 1")
        if self.first_seed < FIRST_HELD_OUT_SEED:
            raise ValueError(
                f"--first-seed {self.first_seed} must be at least {FIRST_HELD_OUT_SEED}: training "
                "uses those below"
            )
        steps = self.duration / STEP_S
        if not LAST_S <= self.duration < np.inf or abs(steps - round(steps)) > ROUNDING:
            raise ValueError(
                f"--duration {self.duration} must be a multiple of {STEP_S} s, at least {LAST_S:g}"
            )


def main(arguments: Sequence[str]) -> int:
    """Runs the command; a fault of the input is one message and exit status 2."""
    try:
        _run(tyro.cli(Options, args=list(arguments), prog="python -m agents.fluid_training"))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _run(options: Options) -> None:
    options.check()
    training = FluidTraining(seed=options.seed, iterations=options.iterations)
    folder = options.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"{str(folder)!r} is no empty folder; choose another --folder, or delete it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # as tensors are small
    start_s, start_cpu_s = time.monotonic(), time.process_time()

    def show(number: int, value: float) -> None:
        _say(f"iteration {number}: {value:.4f} of the split's latency")

    actor = train(training, show)
    _say(
        f"trained in {time.monotonic() - start_s:.0f} s "
        f"({time.process_time() - start_cpu_s:.0f} s of CPU)"
    )
    write_policy(folder, *exported(actor, training))
    _say(f"policy: {folder}")
    new = DescentActor(MAX_CELLS, MAX_CELLS).double()
    excess = held_out(
        {
            "split by capacity": lambda batch: Fixed(batch.model.system.capacity_split()),
            "flow-gradient": flow_gradient,
            "untrained": lambda batch: Acting(new, batch.view),
            "trained": lambda batch: Acting(actor, batch.view),
        },
        options.systems,
        options.duration,
        LAST_S,
        options.first_seed,
    )
    _say(f"latency above the optimum's, {options.systems} held-out systems, last {LAST_S:g} s")
    for name, values in excess.items():
        mean, largest = 100.0 * float(values.mean()), 100.0 * float(values.max())
        within = int((values <= 0.01).sum())
        _say(f"{name:18} mean {mean:6.2f} %  largest {largest:6.2f} %  within 1 %: {within}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
