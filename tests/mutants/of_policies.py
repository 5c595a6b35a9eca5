"""Faults in policies: the paper's six, what they are compared with, and the learned ones."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COSTS = "baselines/costs.py"
DISCRETE = "baselines/discrete.py"
FLOW = "baselines/flow.py"
MNLB = "baselines/mnlb.py"
PLANNED = "baselines/planned.py"
PROGRAM = "baselines/mnlb_program.py"
NETWORKS = "agents/networks.py"
POLICY = "dlb_gym/policy.py"
PREDICTIVE = "baselines/predictive.py"
AUTO = "baselines/auto.py"
STATIC = "baselines/static.py"

OF_DISCRETE = ("tests/baselines/test_discrete.py",)
OF_FLOW = ("tests/baselines/test_flow.py",)
OF_MNLB = ("tests/baselines/test_mnlb.py",)
OF_POLICY = ("tests/test_policy.py",)
OF_STATIC = ("tests/baselines/test_static.py",)
OF_COSTS = ("tests/baselines/test_costs.py",)
OF_PREDICTIVE = ("tests/baselines/test_predictive.py",)
OF_AUTO = "tests/baselines/test_auto.py::test_"
OF_AVERSION = "tests/test_aversion.py::test_disc_"
OF_TRAINING = "tests/agents/test_training.py::test_"

MUTANTS = (
    Mutant(
        "rif-of-another-field",
        COSTS,
        'return fields["rif"].astype(np.float64)',
        'return fields["outstanding"].astype(np.float64)',
        OF_DISCRETE,
        "the RIF policies see their own requests only",
    ),
    Mutant(
        "gradient-is-latency",
        COSTS,
        '"serving_latency" if name == "latency" else "marginal_latency"',
        '"marginal_latency" if name == "latency" else "serving_latency"',
        OF_DISCRETE,
        "the latency and the gradient policies have changed places",
    ),
    Mutant(
        "half-a-round-trip",
        COSTS,
        'if name == "one-way" else fields["rtt"]',
        'if name == "one-way" else 0.5 * fields["rtt"]',
        (*OF_DISCRETE, *OF_FLOW),
        "costs count the way there and not the way back",
    ),
    Mutant(
        "tail-without-a-journey",
        COSTS,
        'return np.asarray(tail + fields["rtt"])',
        "return np.asarray(tail)",
        OF_COSTS,
        "the tail's cost knows no distance",
    ),
    Mutant(
        "usual-requests-corrected",
        PREDICTIVE,
        "deviation: Array = unseen - before * sent_within",
        "deviation: Array = unseen",
        OF_PREDICTIVE,
        "far cells seem to hold what is always on its way to them, and once more",
    ),
    Mutant(
        "prediction-remembers-nothing",
        PREDICTIVE,
        "self._rate = before + share * (rate - before)",
        "self._rate = rate",
        OF_PREDICTIVE,
        "what came a moment ago is taken for usual",
    ),
    Mutant(
        "softmin-of-times-and-counts",
        PREDICTIVE,
        'if self.cost != "rif":',
        'if self.cost != "":',
        OF_PREDICTIVE,
        "a temperature in times is taken for one in requests",
    ),
    Mutant(
        "errors-cancel",
        AUTO,
        "ordered_sum(np.abs(self._outstanding - self._expected), keepdims=True)",
        "np.abs(ordered_sum(self._outstanding - self._expected, keepdims=True))",
        (f"{OF_AUTO}the_cost_is_the_one_that_the_models_error_allows",),
        "a model that is wrong both ways is believed",
    ),
    Mutant(
        "believed-at-once",
        AUTO,
        "axis=-1, keepdims=True) >= WINDOW)",
        "axis=-1, keepdims=True) >= 0.0)",
        (f"{OF_AUTO}before_the_window_has_passed_nothing_is_believed",),
        "a moment of luck decides",
    ),
    Mutant(
        "slope-of-another-cost",
        COSTS,
        'point.latency_slope if name == "latency" else point.marginal_slope',
        'point.marginal_slope if name == "latency" else point.latency_slope',
        (*OF_DISCRETE, *OF_FLOW),
        "a policy's step follows from the slope of another cost",
    ),
    Mutant(
        "rif-slope-of-zero",
        COSTS,
        "slope = np.ones_like(point.n)",
        "slope = np.zeros_like(point.n)",
        (*OF_DISCRETE, *OF_FLOW),
        "disc-rif-score does not count what it sends",
    ),
    Mutant(
        "uphill",
        FLOW,
        "self._routing - self._displacement(fields, arcs)",
        "self._routing + self._displacement(fields, arcs)",
        OF_FLOW,
        "Flow moves towards the cells that cost most",
    ),
    Mutant(
        "flow-without-cap",
        FLOW,
        "share = self.max_move / np.maximum(largest, self.max_move)",
        "share = 1.0 + 0.0 * largest",
        OF_FLOW,
        "Flow jumps",
    ),
    Mutant(
        "flow-without-interval",
        FLOW,
        "self.gain * eta * interval * np.where(",
        "self.gain * eta * np.where(",
        OF_FLOW,
        "Flow's step does not grow with the control interval",
    ),
    Mutant(
        "delay-of-a-round-trip",
        FLOW,
        'loop_delay=0.5 * fields["rtt"] +',
        'loop_delay=fields["rtt"] +',
        OF_FLOW,
        "Flow's loop counts the way twice",
    ),
    Mutant(
        "slopes-past-the-knee",
        FLOW,
        "steady = model.at(np.minimum(rif, STEADY_KNEES * model.knee))",
        "steady = model.at(rif)",
        OF_FLOW,
        "an overloaded cell freezes Flow",
    ),
    Mutant(
        "projection-off-the-simplex",
        POLICY,
        "(np.add.accumulate(ranked, axis=-1) - 1.0) / counts",
        "(np.add.accumulate(ranked, axis=-1) - 1.0) / values.shape[-1]",
        OF_POLICY,
        "projected rows do not add up to 1",
    ),
    Mutant(
        "projection-by-clipping",
        POLICY,
        "return np.where(admissible, np.maximum(height - theta, 0.0), 0.0)",
        "return proportional(np.maximum(height - height.min(-1, keepdims=True), 0.0), admissible)",
        OF_POLICY,
        "the projection is not the nearest point",
    ),
    Mutant(
        "ties-to-the-first",
        POLICY,
        "tied = admissible & (masked == least)",
        "tied = admissible & (masked == least)\n    tied &= tied.cumsum(axis=-1) == 1",
        (*OF_POLICY, *OF_DISCRETE),
        "cells that tie do not share",
    ),
    Mutant(
        "shares-off-the-arcs",
        POLICY,
        "mass = np.where(admissible, weights, 0.0)",
        "mass = np.where(admissible | ~admissible.any(-1, keepdims=True), weights, 0.0)",
        OF_POLICY,
        "roots without arcs get shares",
    ),
    Mutant(
        "score-slope-of-the-whole-cell",
        DISCRETE,
        'slopes * fields["request_weight"], 0.0)',
        "slopes, 0.0)",
        OF_DISCRETE,
        "an own request weighs as much in a large cell as on one server",
    ),
    Mutant(
        "aversion-in-any-order",
        DISCRETE,
        "reaching = np.where(other < mine, root[..., None, :], 1.0)",
        "reaching = np.where(other > mine, root[..., None, :], 1.0)",
        (
            f"{OF_AVERSION}spends_aversion_in_the_order_of_its_costs",
            f"{OF_AVERSION}tries_cells_that_tie_together",
        ),
        "averted traffic goes to the cell that costs most",
    ),
    Mutant(
        "averted-twice",
        DISCRETE,
        "return Decision(averted, aversion_spent=True)",
        "return Decision(averted)",
        (f"{OF_AVERSION}says_that_it_has_spent_aversion_and_is_one_hot_without",),
        "aversion is spent in the policy and again at the root",
    ),
    Mutant(
        "random-by-capacity",
        STATIC,
        'proportional(_float64(fields["servers"])',
        'proportional(_float64(fields["capacity_load"])',
        OF_STATIC,
        "the reference policy splits by rates",
    ),
    Mutant(
        "static-split-follows",
        STATIC,
        "        self._unset = np.zeros_like(self._unset)\n",
        "",
        OF_STATIC,
        "a static policy follows outages",
    ),
    Mutant(
        "mnlb-knows-at-once",
        PLANNED,
        "_Plan(int(self._interval[row]) + 2 * delay, weights)",
        "_Plan(int(self._interval[row]), weights)",
        OF_MNLB,
        "a central plan needs no journey",
    ),
    Mutant(
        "mnlb-without-headroom",
        PROGRAM,
        "b_ub=np.concatenate([headroom * capacity, 0.0 * ones]),",
        "b_ub=np.concatenate([capacity, 0.0 * ones]),",
        OF_MNLB,
        "MNLB fills cells to the brim",
    ),
    Mutant(
        "mnlb-ignores-the-network",
        PROGRAM,
        "price=load[root] * rtt[root, cell] /",
        "price=load[root] + 0.0 * rtt[root, cell] /",
        OF_MNLB,
        "MNLB minimises nothing",
    ),
    Mutant(
        "overload-on-the-nearest",
        PROGRAM,
        "[OVERFLOW_PRICE**2]]),",
        "[0.0]]),",
        OF_MNLB,
        "an overload lands on the nearest cells",
    ),
    Mutant(
        "mnlb-of-one-interval",
        PLANNED,
        "self._arrivals = np.where(first[:, None], 0.0, self._arrivals + own)",
        "self._arrivals = np.where(first[:, None], 0.0, own)",
        OF_MNLB,
        "MNLB plans for a fraction of the arrivals",
    ),
    Mutant(
        "stale-capacity",
        PLANNED,
        "root = np.argmin(np.where(arcs, age, np.inf), axis=1, keepdims=True)",
        "root = np.argmax(np.where(arcs, age, -np.inf), axis=1, keepdims=True)",
        OF_MNLB,
        "MNLB believes the oldest probe",
    ),
    Mutant(
        "rows-mixed-in-the-network",
        NETWORKS,
        "row_mean = (fields.sum(dim=-2, keepdim=True) / count).expand_as(fields)",
        "row_mean = fields.mean(dim=(1, 2), keepdim=True).expand_as(fields)",
        (f"{OF_TRAINING}rows_of_the_action_read_their_own_row_and_cells_may_swap_places",),
        "a root decides by what other roots know",
    ),
    Mutant(
        "padding-in-the-network",
        NETWORKS,
        "count = arcs.sum(dim=-1, keepdim=True).clamp(min=1)[..., None]",
        "count = float(arcs.shape[-1])",
        (f"{OF_TRAINING}padding_changes_no_action",),
        "a learned policy decides differently beside padding",
    ),
    Mutant(
        "untrained-is-uniform",
        NETWORKS,
        "prior = torch.log((capacity + TINY) / (largest + TINY))",
        "prior = 0.0 * torch.log((capacity + TINY) / (largest + TINY))",
        (f"{OF_TRAINING}an_untrained_network_splits_by_capacity",),
        "training starts from a split that overloads small cells",
    ),
    Mutant(
        "copies-meet-other-requests",
        "agents/shared_requests.py",
        "            rewards = rewards - rewards.mean(axis=0)\n",
        "            rewards = rewards - rewards.mean()\n",
        (
            f"{OF_TRAINING}rewards_of_copies_are_those_beyond_their_mean",
            f"{OF_TRAINING}copies_meet_the_same_requests_and_equal_actions_give_no_reward",
        ),
        "luck of the arrivals stays in the reward",
    ),
)
