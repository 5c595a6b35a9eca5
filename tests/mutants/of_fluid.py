"""Faults in the fluid model: its delays, its steps, its routers and what disturbs it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FOLDER = "dlb_gym/fluid/"
DELAYS, MOTION, ROUTING = f"{FOLDER}delays.py", f"{FOLDER}motion.py", f"{FOLDER}routing.py"
SCHEDULE, CONVERGENCE = f"{FOLDER}schedule.py", f"{FOLDER}convergence.py"
OF_DELAYS = "tests/fluid/test_delays.py::test_"
OF_MODEL = "tests/fluid/test_model.py::test_"
OF_ROUTING = "tests/fluid/test_routing.py::test_"
OF_SCHEDULE = "tests/fluid/test_schedule.py::test_"
OF_EQUILIBRIA = "tests/fluid/test_equilibria.py::test_"
SOLVER = (f"{OF_MODEL}it_agrees_with_an_independent_solver_and_is_of_second_order",)

MUTANTS = (
    Mutant(
        "fluid-arrives-at-once",
        DELAYS,
        "self.later = self.due + size",
        "self.later = self.due",
        (f"{OF_DELAYS}a_part_of_a_step_splits_what_arrives", *SOLVER),
        "parts of a step are left out of delays",
    ),
    Mutant(
        "fluid-seen-a-step-late",
        DELAYS,
        "self.late = ((longest + 1 - self.whole) * size",
        "self.late = ((longest - self.whole) * size",
        (f"{OF_DELAYS}reports_are_seen_late_and_in_between",),
        "reports are a step older than they are",
    ),
    Mutant(
        "fluid-pages-that-lose-a-step",
        DELAYS,
        "self._page, self._end = _with_room(self._past), self._length",
        "self._page, self._end = _with_room(self._past.roll(1, 0)), self._length",
        (f"{OF_DELAYS}sliding_on_is_the_same_as_making_anew[2]",),
        "the past is out of order after a page",
    ),
    Mutant(
        "fluid-of-first-order",
        MOTION,
        "served = 0.5 * (self._point.rate_rps + point.rate_rps)",
        "served = self._point.rate_rps",
        SOLVER,
        "Euler's method in place of Heun's",
    ),
    Mutant(
        "fluid-routing-of-first-order",
        MOTION,
        "middle = 0.5 * (seen + seen_then)",
        "middle = seen",
        SOLVER,
        "routing looks at the start of a step alone",
    ),
    Mutant(
        "fluid-without-the-way",
        ROUTING,
        "return cells + system.network(cost)",
        "return cells + 0.5 * system.network(cost)",
        (f"{OF_EQUILIBRIA}an_equilibrium_is_where_flow_stays[gradient]", *SOLVER),
        "costs count one way instead of two",
    ),
    Mutant(
        "fluid-projection-of-the-largest",
        ROUTING,
        "_counts(y.shape[-1], y.dtype, y.device)).amax(dim=-1, keepdim=True)",
        "_counts(y.shape[-1], y.dtype, y.device))[..., :1]",
        (f"{OF_ROUTING}the_projection_is_the_one_by_its_threshold",),
        "the projection goes to a corner",
    ),
    Mutant(
        "fluid-tangent-off-the-faces",
        ROUTING,
        "moved = torch.where(used, z - nu, (unused - nu).clamp(min=0.0))",
        "moved = torch.where(used, z - nu, 0.0)",
        (f"{OF_ROUTING}the_tangent_cone_is_where_small_steps_go",),
        "an arc that is not used is never used again",
    ),
    Mutant(
        "fluid-disc-splits-no-ties",
        ROUTING,
        "return least / least.sum(dim=-1, keepdim=True).clamp(min=1)",
        "return least.to(seen.dtype)",
        (f"{OF_ROUTING}disc_takes_the_least_and_shares_ties",),
        "ties send every request twice",
    ),
    Mutant(
        "fluid-crash-loses-nothing",
        MOTION,
        "self.rif, self._passing = kept * self.rif, passing",
        "self._passing = passing",
        (f"{OF_SCHEDULE}a_crash_takes_what_the_servers_had",),
        "crashed servers go on with what they had",
    ),
    Mutant(
        "fluid-burst-for-ever",
        SCHEDULE,
        "np.clip(edges_s, burst.start_s, burst.end_s)",
        "np.maximum(edges_s, burst.start_s)",
        (f"{OF_SCHEDULE}a_burst_adds_its_requests_while_it_lasts",),
        "bursts do not end",
    ),
    Mutant(
        "fluid-partition-spares-the-wire",
        SCHEDULE,
        "window.start_s - (delay_s if cut else 0.0)",
        "window.start_s",
        (f"{OF_SCHEDULE}a_partition_loses_what_is_sent_through_it",),
        "what is on its way passes a partition",
    ),
    Mutant(
        "fluid-lyapunov-without-steps",
        CONVERGENCE,
        "(system.rates_rps / (2.0 * torch.as_tensor(eta)) * apart)",
        "(system.rates_rps / torch.as_tensor(eta) * apart)",
        (f"{OF_EQUILIBRIA}distances_by_hand",),
        "routing counts twice in the Lyapunov function",
    ),
)
