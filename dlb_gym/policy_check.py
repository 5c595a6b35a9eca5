"""Tests any policy against the contract, on synthetic observations and without a simulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlb_gym.decision import Array, Decision, check_decision
from dlb_gym.observation import Observation
from dlb_gym.policy import Policy, TaskSpec

Fields = dict[str, Array]

ROOTS, CELLS, REPLICATIONS, STEPS = 3, 4, 2, 16
CONTROL_INTERVAL = 2.0
"""In zero-load times, which are seconds here: slow enough for ten-second planners to plan."""
TABLE_FORMS = 2
TABLE_TOLERANCE = 0.02
"""Of a cell's share of a table."""


def check_policy(policy: Policy, seed: int = 0) -> None:
    """Run a policy through every rule of the contract; it is left reset.

    Rules: decisions are finite, on the simplex and zero off the arcs; relabelling cells and roots
    relabels them (to 1e-6, as sums may run in another order; of tables the shares, to 0.02); a
    batch decides as its replications do alone, padding changes nothing, and a restarted row is like
    new (all bit for bit); a `local` policy's row i reads row i only; a `static` policy also keeps
    its first decision.

    Args:
        policy: The policy.
        seed: Of the synthetic observations, and the policy's.

    Raises:
        ValueError: A rule is broken; names the policy and the rule.
    """
    if policy.information == "oracle":
        raise ValueError(
            f"policy {policy.name!r} is an oracle, and synthetic observations have no scenarios to "
            "reveal; test what it does with real ones"
        )
    rng = np.random.default_rng(seed)
    episode = _episode(rng)
    answers = _play(policy, episode, seed)
    _check_labels(policy, episode, answers, rng, seed)
    _check_batch(policy, episode, answers, seed)
    _check_padding(policy, episode, answers, seed)
    _check_restart(policy, episode, answers, _episode(rng), seed)
    if policy.information in ("static", "local"):
        _check_locality(policy, episode, answers, _episode(rng), seed)
    if policy.information == "static":
        _require(policy, answers, [answers[0]] * STEPS, "`static` decides once an episode")
    policy.reset(TaskSpec(ROOTS, CELLS, Observation(ROOTS, CELLS)), REPLICATIONS, seed)


def _episode(rng: np.random.Generator) -> list[Fields]:
    """Fields of consecutive observations, each (replications, roots, cells)."""
    shape = (REPLICATIONS, ROOTS, CELLS)
    arcs = rng.random(shape) < 0.7
    arcs[:, np.arange(ROOTS), rng.integers(CELLS, size=ROOTS)] = True
    rtt = rng.uniform(0.01, 0.2, shape)
    per_cell, per_root = (REPLICATIONS, 1, CELLS), (REPLICATIONS, ROOTS, 1)
    capacity = rng.dirichlet(np.full(CELLS, 5.0), (REPLICATIONS, 1))
    constant = {
        "admissible": np.ones(shape),
        "zero_load_time_s": np.ones(shape),
        "control_interval": np.full(shape, CONTROL_INTERVAL),
        "tail_alpha": rng.uniform(1.6, 2.4, shape),
        "tail_beta": rng.uniform(0.08, 0.12, shape),
        "tail_knee": rng.uniform(5.0, 6.0, shape),
        "tail_smoothing": rng.uniform(0.5, 2.0, shape),
    }
    steps = []
    for _ in range(STEPS):
        live = rng.integers(3, 7, per_cell) / 6.0
        moving = {name: rng.uniform(0.0, 1.0, shape) for name in _OTHER_FIELDS} | {
            "rtt": rtt * rng.uniform(1.0, 1.5, shape),
            "probe_age": rtt / 2 + rng.uniform(0.0, 0.01, per_cell),
            "model_alpha": rng.uniform(0.8, 1.2, shape),
            "model_beta": rng.uniform(0.08, 0.12, shape),
            "model_knee": rng.uniform(5.0, 6.0, shape),
            "model_smoothing": rng.uniform(0.5, 2.0, shape),
            "rif": rng.integers(0, 12, per_cell) * np.ones(shape),
            "servers": capacity * live,
            "request_weight": 1.0 / np.ceil(60.0 * capacity * live),
            "capacity_load": capacity * live,
            "serving_latency": rng.uniform(0.8, 3.0, per_cell),
            "marginal_latency": rng.uniform(0.8, 5.0, per_cell),
            "arrival_load": rng.uniform(0.05, 0.3, per_root),
        }
        fields = constant | moving
        steps.append({name: np.where(arcs, field, 0.0) for name, field in fields.items()})
    return steps


_OTHER_FIELDS = (
    "error_rate",
    "aversion",
    "outstanding",
    "unseen",
    "routing",
    "prefill_backlog",
    "decode_backlog",
)


def _play(policy: Policy, episode: Sequence[Fields], seed: int) -> list[Array]:
    """The policy's answers to an episode, each (forms, replications, roots, cells)."""
    replications, roots, cells = episode[0]["admissible"].shape
    policy.reset(TaskSpec(roots, cells, Observation(roots, cells)), replications, seed)
    return [_act(policy, fields) for fields in episode]


def _act(policy: Policy, fields: Fields) -> Array:
    observation = policy.spec.observation.pack(fields)
    observation.flags.writeable = False
    decision = policy.act(observation)
    try:
        check_decision(decision, fields["admissible"] > 0.0)
    except ValueError as error:
        raise ValueError(f"policy {policy.name!r}: {error}") from error
    return np.array(_forms(decision, fields["admissible"].shape))


def _forms(decision: Decision, shape: tuple[int, ...]) -> list[Array]:
    """What a decision says, each (replications, roots, cells).

    Of a table these are the cells' shares of the entries, and the means of their squared places.
    """
    if decision.table is not None:
        entries = decision.table.shape[-1]
        of_cell = decision.table[..., None, :] == np.arange(shape[-1])[:, None]
        places = (np.arange(entries) / entries) ** 2
        return [of_cell.sum(axis=-1) / entries, (of_cell * places).sum(axis=-1) / entries]
    arrays = (
        decision.routing, decision.base, decision.slope, decision.offset, decision.token_value
    )  # fmt: skip
    return [array for array in arrays if array is not None] + [
        np.full(shape, float(decision.samples)),
        np.full(shape, float(decision.dispatch == "smooth")),
    ]


def _check_labels(
    policy: Policy,
    episode: Sequence[Fields],
    answers: Sequence[Array],
    rng: np.random.Generator,
    seed: int,
) -> None:
    roots, cells = _cycle(rng, ROOTS), _cycle(rng, CELLS)
    renamed = [{n: f[:, roots][:, :, cells] for n, f in fields.items()} for fields in episode]
    expected = [answer[:, :, roots][..., cells] for answer in answers]
    rule = "relabelling roots and cells must relabel the decision"
    found = _play(policy, renamed, seed)
    if len(expected[0]) == TABLE_FORMS:
        # Whom a hash meets where may follow from a cell's number, how many it meets may not.
        found, expected = [f[:1] for f in found], [e[:1] for e in expected]
        _require(policy, found, expected, rule, tolerance=TABLE_TOLERANCE)
        return
    _require(policy, found, expected, rule, tolerance=1e-6)


def _cycle(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """A permutation that leaves nobody in place."""
    order = rng.permutation(count)
    moved = np.empty(count, dtype=np.int64)
    moved[order] = np.roll(order, 1)
    return moved


def _check_batch(
    policy: Policy, episode: Sequence[Fields], answers: Sequence[Array], seed: int
) -> None:
    for row in range(REPLICATIONS):
        alone = [{name: f[row : row + 1] for name, f in fields.items()} for fields in episode]
        expected = [answer[:, row : row + 1] for answer in answers]
        rule = f"replication {row} must decide alone (with seed + {row}) as in a batch"
        _require(policy, _play(policy, alone, seed + row), expected, rule)


def _check_padding(
    policy: Policy, episode: Sequence[Fields], answers: Sequence[Array], seed: int
) -> None:
    padding = ((0, 0), (0, 2), (0, 6))
    padded = [{name: np.pad(f, padding) for name, f in fields.items()} for fields in episode]
    inner = [answer[:, :, :ROOTS, :CELLS] for answer in _play(policy, padded, seed)]
    _require(policy, inner, answers, "padded roots and cells must change nothing")


def _check_restart(
    policy: Policy,
    episode: Sequence[Fields],
    answers: Sequence[Array],
    other: Sequence[Fields],
    seed: int,
) -> None:
    """Replication 0 restarts half-way and then sees another episode; the rest carries on."""
    half = STEPS // 2
    expected = [answer.copy() for answer in answers]
    for late, new in enumerate(_play(policy, other, seed)[: STEPS - half]):
        expected[half + late][:, 0] = new[:, 0]
    found = _play(policy, episode[:half], seed)
    policy.restart(np.arange(REPLICATIONS) == 0)
    for fields, new_fields in zip(episode[half:], other, strict=False):
        mixed = {name: np.concatenate([new_fields[name][:1], fields[name][1:]]) for name in fields}
        found.append(_act(policy, mixed))
    _require(policy, found, expected, "restart must make its rows like new and touch no other")


def _check_locality(
    policy: Policy,
    episode: Sequence[Fields],
    answers: Sequence[Array],
    other: Sequence[Fields],
    seed: int,
) -> None:
    for root in range(ROOTS):
        own = (np.arange(ROOTS) == root)[:, None]
        mixed = [
            {name: np.where(own, fields[name], elsewhere[name]) for name in fields}
            for fields, elsewhere in zip(episode, other, strict=True)
        ]
        found = [answer[:, :, root] for answer in _play(policy, mixed, seed)]
        rule = f"`{policy.information}`, so row {root} must depend on row {root} only"
        _require(policy, found, [answer[:, :, root] for answer in answers], rule)


def _require(
    policy: Policy,
    found: Sequence[Array],
    expected: Sequence[Array],
    rule: str,
    tolerance: float = 0.0,
) -> None:
    for step, (one, two) in enumerate(zip(found, expected, strict=True)):
        if one.shape != two.shape:
            raise ValueError(
                f"policy {policy.name!r} breaks a rule at step {step}: {rule}; "
                f"decisions are of {len(one)} and {len(two)} arrays"
            )
        gap: NDArray[np.float64] = np.abs(one - two)
        if gap.max() > tolerance:
            raise ValueError(
                f"policy {policy.name!r} breaks a rule at step {step}: {rule}; "
                f"decisions differ by up to {gap.max():.3g}"
            )
