from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import minimize

import baselines
from dlb_gym.decision import Decision, check_decision
from dlb_gym.episodes import FixedScenarios
from dlb_gym.observation import Observation
from dlb_gym.policy import (
    Information,
    Policy,
    TaskSpec,
    project_to_simplex,
    proportional,
    split_ties,
)
from dlb_gym.policy_check import check_policy
from dlb_gym.scenario_source import scenario_from_dict
from dlb_gym.task import Task
from tests.short_episodes import ring

ALL = np.ones((1, 2, 2), dtype=np.bool_)
HALF = np.full((1, 2, 2), 0.5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),  # already there
        ([1.0, 1.0, 1.0], [1 / 3, 1 / 3, 1 / 3]),  # theta = 2/3
        ([0.9, 0.7, -0.5], [0.6, 0.4, 0.0]),  # theta = 0.3
        ([5.0, 1.0, 0.0], [1.0, 0.0, 0.0]),  # theta = 4
        ([-1e12, -1e12 - 7.0, 0.0], [0.0, 0.0, 1.0]),
    ],
)
def test_projections_by_hand(values: list[float], expected: list[float]) -> None:
    found = project_to_simplex(np.array(values), np.ones(3, dtype=np.bool_))
    np.testing.assert_allclose(found, expected, atol=1e-15)


def test_the_projection_meets_its_optimality_conditions() -> None:
    # KKT: y - x equals theta where x > 0 and is at most theta elsewhere on the arcs.
    rng = np.random.default_rng(0)
    values = rng.normal(size=(200, 7)) * rng.choice([0.1, 1.0, 30.0], (200, 1))
    arcs = rng.random((200, 7)) < 0.7
    arcs[:, 0] = True
    found = project_to_simplex(values, arcs)
    np.testing.assert_allclose(found.sum(axis=-1), 1.0, rtol=1e-14)
    assert (found >= 0).all()
    assert (found[~arcs] == 0).all()
    gap = np.where(arcs, values - found, -np.inf)
    theta = gap.max(axis=-1, keepdims=True)
    np.testing.assert_allclose(np.where(found > 0, gap - theta, 0.0), 0.0, atol=1e-12)


def test_the_projection_is_what_a_general_solver_finds() -> None:
    values = np.array([0.8, 0.1, 0.45, -0.2])
    solution = minimize(
        lambda x: ((x - values) ** 2).sum(),
        np.full(4, 0.25),
        method="SLSQP",
        bounds=[(0, 1)] * 4,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        options={"ftol": 1e-14},
    )
    found = project_to_simplex(values, np.ones(4, dtype=np.bool_))
    np.testing.assert_allclose(found, solution.x, atol=1e-6)


def test_projections_do_not_depend_on_order_or_padding() -> None:
    rng = np.random.default_rng(2)
    values, arcs = rng.normal(size=(50, 12)), np.ones((50, 12), dtype=np.bool_)
    found = project_to_simplex(values, arcs)
    order = rng.permutation(12)
    np.testing.assert_array_equal(project_to_simplex(values[:, order], arcs), found[:, order])
    padded = project_to_simplex(np.pad(values, ((0, 0), (0, 5))), np.pad(arcs, ((0, 0), (0, 5))))
    np.testing.assert_array_equal(padded[:, :12], found)


def test_rows_without_arcs_become_zero() -> None:
    values, none = np.ones((2, 3)), np.zeros((2, 3), dtype=np.bool_)
    for rule in (project_to_simplex, proportional, split_ties):
        np.testing.assert_array_equal(rule(values, none), np.zeros((2, 3)))


def test_proportional_shares_and_falls_back_to_equal_ones() -> None:
    weights = np.array([[1.0, 3.0, 9.0], [0.0, 0.0, 5.0]])
    arcs = np.array([[True, True, False], [True, True, False]])
    expected = [[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]]
    np.testing.assert_array_equal(proportional(weights, arcs), expected)


def test_proportional_refuses_weights_whose_sum_is_no_number() -> None:
    with pytest.raises(ValueError, match="finite and at least 0; a row's sum overflows; clip them"):
        proportional(np.full((1, 2), 1e308), np.ones((1, 2), dtype=np.bool_))


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_proportional_refuses_weights_that_are_none(bad: float) -> None:
    with pytest.raises(
        ValueError, match=r"weights must be finite and at least 0; entry \(0, 1\) is not; clip"
    ):
        proportional(np.array([[1.0, bad]]), np.ones((1, 2), dtype=np.bool_))


def test_ties_are_split_equally_and_only_where_exact() -> None:
    """Fault kind 24."""
    cost = np.array([[1.0, 1.0, np.nextafter(1.0, 2.0)], [3.0, 2.0, 1.0]])
    arcs = np.array([[True, True, True], [True, True, False]])
    np.testing.assert_array_equal(split_ties(cost, arcs), [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])


FOR_ROOTS = [name for name in baselines.names() if baselines.make(name).information != "oracle"]
WANDERING = {"predictive-flow-rif", "predictive-flow-latency", "predictive-flow-gradient"}
"""They correct for own requests under way, and Flow adds up the noise of these."""


@pytest.mark.parametrize("name", FOR_ROOTS)
def test_a_burst_on_equal_stale_cells_is_shared_by_all_of_them(name: str) -> None:
    """Fault kind 24. Four equal cells, equally far, and no report after the first ones.

    Every cost ties throughout. Shares of 2 s of 256 requests/s in 4 rows lie within 99.9 % of a
    binomial's; at most one request in most intervals, so a tie that goes by index shows as well
    where a policy counts what it sent since its last decision.
    """
    cells, rows, burst_s = 4, 4, 2.0
    everywhere = {"rtt_s": [[0.1] * cells] * cells}
    burst = ring(
        cells, network=everywhere, probe_interval_s=10.0, control_interval_s=0.01, warmup_s=0.0,
        horizon_s=10.0, demand={"utilisation": 2.0},
    )  # fmt: skip
    task = Task(FixedScenarios([scenario_from_dict(burst)]), rows)
    policy = baselines.make(name)
    policy.reset(task.spec, rows, 0)
    observation = task.reset(seeds=list(range(rows)))
    for _ in range(round(burst_s / 0.01)):
        observation = task.step(policy.act(observation)).observation
    sent = task.simulator.view().sent
    assert sent.sum() == pytest.approx(256 * burst_s * rows, rel=0.1)
    low, high = stats.binom.interval(0.999, sent.sum(), 1 / cells)
    assert (sent.sum(axis=(0, 1)) >= low).all()
    assert (sent.sum(axis=(0, 1)) <= high).all()
    for root in sent.sum(axis=0):  # no root has a favourite of its own: 99.9 % for all together
        level = 1 - 0.001 / cells**2
        low, high = stats.binom.interval(level, root.sum(), 1 / cells)
        if name in WANDERING:
            low, high = 0.9 * low, 1.1 * high
        assert low <= root.min() <= root.max() <= high


def test_a_decision_has_one_form() -> None:
    for forms, held in (
        ({}, "nothing"),
        ({"routing": HALF, "base": HALF, "slope": HALF}, r"routing \+ base \+ slope"),
        ({"base": HALF}, "base"),
        ({"base": HALF, "slope": HALF, "offset": HALF, "samples": 2}, r"base .* offset \+ samples"),
        ({"dispatch": "smooth"}, "dispatch"),
    ):
        rule = rf"a Decision holds {held}; give one of these together: routing, routing \+ dispatch"
        with pytest.raises(ValueError, match=rule):
            Decision(**forms)
    with pytest.raises(ValueError, match="token_value belongs to scores; give base and slope"):
        Decision(HALF, token_value=HALF)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (np.zeros((1, 2), np.int16), r"= \(1, 2, at least 1\); got int16 of shape \(1, 2\)"),
        (np.zeros((1, 2, 0), np.int16), r"got int16 of shape \(1, 2, 0\)"),
        (np.zeros((1, 2, 3)), "table must be int16 .* got float64"),
        (np.full((1, 2, 3), 2, np.int16), "root 0 names a cell that does not exist; use 0 to 1"),
        (np.full((1, 2, 3), -1, np.int16), "root 0 names a cell that does not exist"),
        (np.array([[[0, 1], [0, 1]]], np.int16), "root 1 sends to a cell that is no arc; fill it"),
    ],
)
def test_faulty_tables_are_refused_by_name(table: NDArray[np.int16], fault: str) -> None:
    arcs = np.array([[[True, True], [True, False]]])
    with pytest.raises(ValueError, match=fault):
        check_decision(Decision(table=table), arcs)


def test_a_padded_roots_table_may_name_any_cell() -> None:
    arcs = np.array([[[True, False], [False, False]]])
    check_decision(Decision(table=np.array([[[0, 0], [1, 0]]], np.int16)), arcs)


def _with(value: float) -> NDArray[np.float64]:
    routing = HALF.copy()
    routing[0, 1, 0] = value
    return routing


@pytest.mark.parametrize(
    ("routing", "fault"),
    [
        (_with(float("nan")), "replication 0, root 1 holds NaN"),
        (_with(-0.5), "replication 0, root 1 has a negative share"),
        (_with(0.5 + 2e-6), "replication 0, root 1 does not sum to 1 within 1e-06"),
        (HALF[:, :1], r"must be float64 of shape .* \(1, 2, 2\); got float64 of shape \(1, 1, 2\)"),
        (HALF.astype(np.float32), "must be float64"),
    ],
)
def test_faulty_decisions_name_the_replication_and_the_root(
    routing: NDArray[np.float64], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        check_decision(Decision(routing), ALL)


def test_arcs_bind_decisions_and_padded_roots_send_nothing() -> None:
    arcs = np.array([[[True, False], [False, False]]])
    check_decision(Decision(np.array([[[1.0, 0.0], [0.0, 0.0]]])), arcs)
    with pytest.raises(ValueError, match="root 0 sends to a cell that is no arc"):
        check_decision(Decision(np.array([[[0.5, 0.5], [0.0, 0.0]]])), arcs)
    with pytest.raises(ValueError, match="slope of replication 0, root 1 holds NaN"):
        check_decision(Decision(base=HALF, slope=_with(float("inf"))), ALL)


class Odd(Policy):
    """Weighted random with one fault."""

    name = "odd"
    information: Information = "local"

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        super().reset(spec, num_replications, seed)
        self.calls = 0

    def act(self, observation: NDArray[np.float32]) -> Decision:
        fields = self.fields(observation)
        arcs, weights = fields["admissible"] > 0, fields["servers"].astype(np.float64)
        self.calls += 1
        if self.fault == "label":
            weights[..., 0] *= 2.0
        elif self.fault == "batch":
            weights *= 1.0 + weights.mean(axis=0)
        elif self.fault == "padding":
            weights **= 1.0 + weights.shape[-1]
        elif self.fault == "memory":
            weights **= self.calls
        elif self.fault == "central":
            weights *= fields["arrival_load"].max(axis=1, keepdims=True)
        elif self.fault == "support":
            arcs = np.ones_like(arcs)
        return Decision(proportional(weights, arcs))


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("label", "relabelling roots and cells"),
        ("batch", "replication 0 must decide alone"),
        ("padding", "padded roots and cells"),
        ("memory", "restart must make its rows like new"),
        ("central", "row 0 must depend on row 0 only"),
    ],
)
def test_check_policy_finds_each_fault(fault: str, rule: str) -> None:
    told = rf"^policy 'odd' breaks a rule at step \d+: .*{rule}.*; decisions differ by up to \d"
    with pytest.raises(ValueError, match=told):
        check_policy(Odd(fault))
    check_policy(Odd("none"))


def test_check_policy_finds_a_form_that_depends_on_the_batch() -> None:
    class Two(Odd):
        def act(self, observation: NDArray[np.float32]) -> Decision:
            routing = super().act(observation).routing
            assert routing is not None
            return Decision(routing) if len(routing) > 1 else Decision(base=routing, slope=routing)

    with pytest.raises(
        ValueError, match=r"decide alone .* in a batch; decisions are of 4 and 3 arrays"
    ):
        check_policy(Two("none"))


def test_check_policy_finds_a_decision_that_is_none() -> None:
    with pytest.raises(
        ValueError, match=r"^policy 'odd': routing of replication \d, root \d sends"
    ):
        check_policy(Odd("support"))


def test_check_policy_holds_static_policies_to_their_first_decision() -> None:
    policy = Odd("none")
    policy.information = "static"
    with pytest.raises(ValueError, match="decides once an episode"):
        check_policy(policy)


def test_a_task_spec_is_sizes_and_a_codec() -> None:
    spec = TaskSpec(3, 4, Observation(3, 4))
    assert (spec.num_roots, spec.num_cells) == (3, 4)
