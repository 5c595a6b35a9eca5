"""Faults in the equilibria of fluid theory, which closed forms notice."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TESTS = "tests/test_equilibrium.py::"

MUTANTS = (
    Mutant(
        "rif-pays-for-the-network",
        "dlb_gym/central_path.py",
        'np.zeros_like(round_trip_s) if cost == "rif" else round_trip_s',
        "round_trip_s",
        (f"{TESTS}test_two_cells_balance_where_bisection_says",),
        "the rif cost has the network's part, too",
    ),
    Mutant(
        "one-way-for-both",
        "dlb_gym/central_path.py",
        "np.where(arcs, 2.0 * one_way_s, 0.0)",
        "np.where(arcs, one_way_s, 0.0)",
        (f"{TESTS}test_one_hyperbolic_cell_has_a_closed_form",),
        "requests pay for one way",
    ),
    Mutant(
        "arcs-all-soft",
        "dlb_gym/central_path.py",
        "np.nonzero(q > flatness)",
        "np.nonzero(q > np.inf * flatness)",
        (f"{TESTS}test_selfish_routing_costs_any_factor_by_pigous_example",),
        "steps of used arcs are eliminated, and digits with them",
    ),
    Mutant(
        "farthest-equilibrium-for-nearest",
        "dlb_gym/equilibrium.py",
        "for sign in (1.0, -1.0)",
        "for sign in (-1.0, 1.0)",
        (f"{TESTS}test_rif_leaves_it_open_who_travels",),
        "of the rif cost's equilibria, the worst is given",
    ),
    Mutant(
        "cut-of-all-cells",
        "dlb_gym/equilibrium.py",
        "prices < 0.5 * prices.min()",
        "prices <= 0.0",
        (f"{TESTS}test_demand_beyond_a_cut_names_its_roots_and_cells",),
        "infeasible demand names all roots and cells",
    ),
    Mutant(
        "any-residual",
        "dlb_gym/central_path.py",
        "RESIDUAL = 1e-9",
        "RESIDUAL = 1e9",
        (f"{TESTS}test_what_is_no_equilibrium_is_refused",),
        "whatever the solver stops at is an equilibrium",
    ),
    Mutant(
        "price-upside-down",
        "dlb_gym/equilibrium.py",
        "found.latency_s / least_s",
        "least_s / found.latency_s",
        (f"{TESTS}test_selfish_routing_costs_any_factor_by_pigous_example",),
        "the price of anarchy is at most 1",
    ),
)
