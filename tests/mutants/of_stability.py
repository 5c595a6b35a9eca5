"""Faults in the linearisation of Flow and in what is concluded from it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STABILITY = "dlb_gym/stability.py"
STEP_SIZES = "dlb_gym/step_sizes.py"
OF_STABILITY = "tests/test_stability.py::test_"
NYQUIST = (
    f"{OF_STABILITY}the_critical_gain_is_where_an_eigenlocus_first_meets_minus_one[0]",
    f"{OF_STABILITY}the_delay_equations_decay_below_the_critical_gain_and_grow_above[0]",
)
CLOSED_FORM = ("tests/test_step_sizes.py::test_two_equal_cells_have_the_closed_form",)

MUTANTS = (
    Mutant(
        "stability-projector",
        STABILITY,
        "(np.eye(linked.shape[1]) - 1.0 / choices)",
        "(np.eye(linked.shape[1]) - 0.5 / choices)",
        NYQUIST,
        "shares of a root need not add up to 1",
    ),
    Mutant(
        "stability-delay",
        STABILITY,
        "loop.one_way_s[root, into] + loop.one_way_s[root, of]",
        "2.0 * loop.one_way_s[root, of]",
        NYQUIST,
        "requests travel as far as the report that moved them",
    ),
    Mutant(
        "stability-wire",
        STABILITY,
        "sums @ sums.T @ on_the_wire",
        "0.0 * sums @ sums.T @ on_the_wire",
        NYQUIST,
        "what is on the wire is forgotten",
    ),
    Mutant(
        "stability-star",
        STABILITY,
        "(1.0 + 2.0 * a * farthest_s)",
        "(1.0 + a * farthest_s)",
        (f"{OF_STABILITY}star_by_hand",),
        "(star) counts one way only",
    ),
    Mutant(
        "stability-theta",
        STABILITY,
        "rate_slope / loop_delay_s * theta / np.sin(theta)",
        "rate_slope / loop_delay_s * theta / np.tan(theta)",
        (f"{OF_STABILITY}the_closed_form_puts_a_pair_on_the_imaginary_axis",),
        "the closed form of equal delays has a wrong angle",
    ),
    Mutant(
        "stability-ties",
        STABILITY,
        'np.zeros_like(one_way_s) if cost == "rif" else 2.0 * one_way_s',
        "2.0 * one_way_s",
        (f"{OF_STABILITY}the_linearisation_takes_the_slopes_and_ties_of_its_cost",),
        "the rif cost counts the network",
    ),
    Mutant(
        "step-sizes-router",
        STEP_SIZES,
        "(scenario.router_delay_s + sampled_s)",
        "sampled_s",
        CLOSED_FORM,
        "a loop skips the router's delay",
    ),
)
