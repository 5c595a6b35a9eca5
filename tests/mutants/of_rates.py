"""Faults in what follows from a scenario: journeys, nominal rates, latency curves and priors."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PACKAGE = "dlb_gym/"
CALIBRATION = f"{PACKAGE}calibration.py"
LATENCY = f"{PACKAGE}latency_model.py"
NETWORK = f"{PACKAGE}network.py"
RATES = f"{PACKAGE}rates.py"
OF_NETWORK = ("tests/test_network.py",)
OF_RATES = "tests/test_rates.py::test_"
OF_LATENCY = "tests/test_latency_model.py::test_"
OF_CALIBRATION = "tests/test_calibration.py::test_"
CURVES = (
    f"{OF_CALIBRATION}a_curve_starts_at_the_zero_load_time_and_ends_at_the_nominal_rate",
    f"{OF_CALIBRATION}a_fit_keeps_its_constraint_and_follows_the_measured_points",
)

MUTANTS = (
    Mutant(
        "distance-one-way",
        NETWORK,
        "PATH_STRETCH * 2.0 * distance_km / FIBRE_KM_PER_S",
        "PATH_STRETCH * distance_km / FIBRE_KM_PER_S",
        OF_NETWORK,
        "round trips go one way",
    ),
    Mutant(
        "flat-earth",
        NETWORK,
        "math.cos(latitude_a) * math.cos(latitude_b) * math.sin(half_longitude) ** 2",
        "math.cos(latitude_a) * math.sin(half_longitude) ** 2",
        OF_NETWORK,
        "distances are those of no sphere",
    ),
    Mutant(
        "one-direction-measured",
        NETWORK,
        "both_ways = 0.5 * self.directed_rtt_s + 0.5 * self.directed_rtt_s.T",
        "both_ways = self.directed_rtt_s",
        OF_NETWORK,
        "an arc has the round trip of one direction",
    ),
    Mutant(
        "mean-over-all-pairs",
        NETWORK,
        "mean_rtt_s * masked.size / total",
        "mean_rtt_s * rtt_s.size / total",
        OF_NETWORK,
        "rescaled round trips miss their mean",
    ),
    Mutant(
        "journeys-of-a-round-trip",
        RATES,
        "return np.where(reachable, rtt_s / 2.0, np.nan)",
        "return np.where(reachable, rtt_s, np.nan)",
        (
            "tests/test_simulator.py::"
            "test_one_way_latency_is_half_the_round_trip_and_missing_off_the_arcs",
        ),
        "everything travels twice as long",
    ),
    Mutant(
        "slots-ignored",
        RATES,
        "np.maximum(prefill_s, decode_s / slots)",
        "np.maximum(prefill_s, decode_s)",
        (f"{OF_RATES}the_slower_stage_sets_the_nominal_rate",),
        "decode slots do not raise the nominal rate",
    ),
    Mutant(
        "fleets-time-unweighted",
        RATES,
        "weighted = ordered_sum(rates_rps * zero_load_times_s(scenario))\n"
        "    return float(weighted / ordered_sum(rates_rps))",
        "return float(zero_load_times_s(scenario).mean())",
        (f"{OF_RATES}the_zero_load_time_weighs_cells_by_their_nominal_rate",),
        "small cells weigh as much as large ones in the fleet's zero-load time",
    ),
    Mutant(
        "variance-of-tokens-forgotten",
        RATES,
        "output**2 + variance)",
        "output**2)",
        ("tests/test_rates.py::test_moments_of_gammas_are_those_of_a_large_sample",),
        "the second moment of outputs is that of equal ones",
    ),
    Mutant(
        "headroom-of-another-curve",
        LATENCY,
        "model.alpha - model.beta * model.knee * self._logistic",
        "model.alpha + model.beta * model.knee * self._logistic",
        (f"{OF_LATENCY}at_the_knee_the_numbers_are_those_of_a_hand_computation",),
        "the marginal latency is no derivative",
    ),
    Mutant(
        "curvature-without-smoothing",
        LATENCY,
        "self.model.beta / self.model.smoothing * major * minor",
        "self.model.beta * major * minor",
        (f"{OF_LATENCY}at_the_knee_the_numbers_are_those_of_a_hand_computation",),
        "the slope of the marginal latency is wrong",
    ),
    Mutant(
        "step-by-the-softest-cell",
        LATENCY,
        "inverse = xp.amax(gain, -1)",
        "inverse = xp.amin(gain, -1)",
        (f"{OF_LATENCY}the_step_reads_arcs_only_and_the_stiffest_cell_rules",),
        "Flow's step is too large for the stiffest cell",
    ),
    Mutant(
        "step-without-delay",
        LATENCY,
        "carried * delay / STEP_GAIN",
        "carried / STEP_GAIN",
        (f"{OF_LATENCY}the_step_is_safely_below_the_gain_at_which_two_cells_oscillate",),
        "Flow's step ignores the loop's delay",
    ),
    Mutant(
        "calibration-from-empty",
        CALIBRATION,
        "        if window > 0:\n",
        "        if window >= 0:\n",
        CURVES,
        "latency curves include the filling of an empty cell",
        jit=True,
    ),
    Mutant(
        "calibration-of-fewer-servers",
        CALIBRATION,
        "rate = SERVERS / max(share, (1.0 - share) / slots)",
        "rate = SERVERS / max(share, 1.0 - share)",
        CURVES,
        "curves are measured far below the loads they are for",
        jit=True,
    ),
    Mutant(
        "interpolation-reversed",
        CALIBRATION,
        "(1.0 - weight) * ends[0] + weight * ends[1]",
        "weight * ends[0] + (1.0 - weight) * ends[1]",
        (
            f"{OF_CALIBRATION}at_a_grid_share_the_interpolation_is_the_fit",
            f"{OF_CALIBRATION}the_curve_follows_the_bottleneck_where_it_passes_from_decode_to_prefill",
        ),
        "a cell has the curve of its neighbour on the grid",
        jit=True,
    ),
    Mutant(
        "curves-without-unit",
        CALIBRATION,
        "np.tile([unit_s, unit_s, 1.0, 1.0], 2)",
        "np.tile([unit_s, 1.0, 1.0, 1.0], 2)",
        (
            f"{OF_CALIBRATION}"
            "parameters_scale_with_the_zero_load_time_and_ignore_the_number_of_servers",
        ),
        "slopes are in zero-load times and all else in seconds",
        jit=True,
    ),
    Mutant(
        "fit-by-absolute-error",
        CALIBRATION,
        "np.log(model(p).at(n).latency / latency)",
        "model(p).at(n).latency - latency",
        CURVES,
        "curves fit the overload and not the loads that matter",
        jit=True,
    ),
    Mutant(
        "noise-in-common",
        f"{PACKAGE}mechanism_rows.py",
        "uniform(-1.0, 1.0, len(models))",
        "uniform(-1.0, 1.0)",
        ("tests/test_estimation.py::test_noise_multiplies_a_cells_parameters_by_one_factor",),
        "noisy models are off by the same factor in all cells",
    ),
    Mutant(
        "prior-unweighted",
        f"{PACKAGE}mechanism_rows.py",
        "ordered_sum((logs * servers).T) / ordered_sum(servers[:, 0])",
        "ordered_sum(logs.T) / len(models)",
        ("tests/test_estimation.py::test_online_begins_with_the_same_model_for_all_cells",),
        "the first prior counts cells and not servers",
    ),
    Mutant(
        "doubt-without-interval",
        f"{PACKAGE}mechanism_rows.py",
        "math.exp(-aversion.interval_s / aversion.recovery_s)",
        "math.exp(-1.0 / aversion.recovery_s)",
        ("tests/test_aversion.py::test_doubt_grows_with_time_and_not_with_the_number_of_updates",),
        "recovery takes as many updates as seconds",
    ),
)
