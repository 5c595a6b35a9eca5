"""Faults in the engine's lean part: roots send, cells serve, answers and reports come back."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ADVANCE = "dlb_gym/engine/advance.py"
CELLS = "dlb_gym/engine/cells.py"
DISPATCH = "dlb_gym/engine/dispatch.py"
CHOICES = "dlb_gym/engine/choices.py"
HEAP = "dlb_gym/engine/heap.py"
INTAKE = "dlb_gym/engine/intake.py"
LEAF = "dlb_gym/engine/leaf.py"
OBSERVE = "dlb_gym/engine/observe.py"
ROUTE = "dlb_gym/engine/route.py"

COURSE = "tests/parity/test_engine_reference.py::test_every_request_takes_the_same_course"
COINCIDING = (
    "tests/parity/test_mechanism_reference.py::"
    "test_requests_that_end_together_leave_in_a_stated_order[1]",
)
REFERENCE = tuple(f"{COURSE}[modes6-{seed}]" for seed in range(12))
SMOOTH = tuple(f"{COURSE}[modes1-{seed}]" for seed in range(4))
SCORE = tuple(f"{COURSE}[modes2-{seed}]" for seed in range(4))
OF_SIMULATOR = "tests/test_simulator.py::test_"
INSTANT = (
    f"{OF_SIMULATOR}at_one_instant_a_completion_precedes_an_arrival_and_an_arrival_the_report",
)
METRICS = ("tests/test_task.py::test_metrics_are_numpys_on_the_request_log",)
SETTLING = ("tests/test_task.py::test_settling_is_played_and_rewarded_but_not_measured",)
DRAINING = ("tests/test_task.py::test_draining_answers_every_request_that_arrived_by_the_horizon",)
FIELDS = ("tests/test_observation.py::test_a_field_is_what_its_definition_says",)
SATURATION = ("tests/test_observation.py::test_whatever_exceeds_a_bound_saturates_there",)
ACTIONS = (
    "tests/test_actions.py::test_values_outside_the_range_count_as_the_nearest_bound",
    "tests/test_actions.py::test_all_zero_weights_mean_uniform_over_the_arcs",
)

MUTANTS = (
    Mutant(
        "off-by-one-slot",
        CELLS,
        "for k in range(2, 1 + slots):",
        "for k in range(2, slots):",
        REFERENCE,
        "the last decode slot of a server is never used",
    ),
    Mutant(
        "probe-without-delay",
        INTAKE,
        "    if tau > now_s:\n        return\n",
        "    tau = 0.0\n",
        REFERENCE,
        "roots hold reports that are still under way",
    ),
    Mutant(
        "lost-error",
        LEAF,
        "    note_outcome(now_s, 1.0, c, cell_time)\n    answer(c, slot, arc, request)",
        "    note_outcome(now_s, 1.0, c, cell_time)",
        REFERENCE,
        "an error never comes back to its root",
    ),
    Mutant(
        "biased-routing-draw",
        CHOICES,
        "if u < total:",
        "if u * u < total:",
        REFERENCE,
        "the first cells of a row get more than their share",
    ),
    Mutant(
        "wrong-queue-limit",
        CELLS,
        "    if server[s, UNFINISHED] >= params.shape[r, QUEUE_LIMIT]:\n        fail(",
        "    if server[s, UNFINISHED] > params.shape[r, QUEUE_LIMIT]:\n        fail(",
        REFERENCE,
        "a full server takes one more",
    ),
    Mutant(
        "smooth-pays-its-own-weight",
        CHOICES,
        "credit[j] -= total",
        "credit[j] -= weights[j]",
        SMOOTH,
        "smooth round robin runs away from its weights",
    ),
    Mutant(
        "smooth-keeps-credit-without-weight",
        CHOICES,
        "            credit[j] = 0.0\n",
        "            credit[j] += 0.0\n",
        SMOOTH,
        "a cell that had no weight collects on old credit",
    ),
    Mutant(
        "scores-count-since-ever",
        ADVANCE,
        "            state.arc[r, i, j, INTERVAL_SENT] = 0\n",
        "            state.arc[r, i, j, INTERVAL_SENT] += 0\n",
        SCORE,
        "own requests of earlier decisions weigh on scores",
    ),
    Mutant(
        "router-delay-forgotten",
        DISPATCH,
        "(arrival_s + clock[ROUTER_DELAY_S]) + tau_s[j]",
        "arrival_s + tau_s[j]",
        REFERENCE,
        "requests reach leaves early",
    ),
    Mutant(
        "arrivals-at-the-end-are-late",
        ADVANCE,
        "requests[stop, ARRIVAL_S] <= until_s:",
        "requests[stop, ARRIVAL_S] < until_s:",
        REFERENCE,
        "an arrival at a decision's instant follows the next decision",
    ),
    Mutant(
        "arrivals-after-the-horizon",
        ADVANCE,
        "until_s = min(end_s, clock[LAST_ARRIVAL_S])",
        "until_s = end_s",
        DRAINING,
        "the system never drains",
    ),
    Mutant(
        "arrival-mean-reversed",
        ADVANCE,
        "rate_rps + clock[LOAD_DECAY] * (load - rate_rps)",
        "load + clock[LOAD_DECAY] * (rate_rps - load)",
        (f"{OF_SIMULATOR}a_roots_arrival_rate_is_an_exponential_mean_over_one_second",),
        "the mean of a root's arrivals forgets at the wrong pace",
    ),
    Mutant(
        "second-server-off-by-one",
        LEAF,
        "    if second >= first:",
        "    if second > first:",
        REFERENCE,
        "power of two choices compares a server with itself",
    ),
    Mutant(
        "leaf-prefers-the-busier-server",
        LEAF,
        "if server[second, TOKENS] < server[first, TOKENS]",
        "if server[second, TOKENS] > server[first, TOKENS]",
        REFERENCE,
        "power of two choices is turned round",
    ),
    Mutant(
        "prefills-never-leave-the-count",
        LEAF,
        "server[s, TOKENS] -= int(request[head, PROMPT_TOKENS])",
        "server[s, TOKENS] -= 0",
        REFERENCE,
        "prompt tokens that are done still count as unfinished",
    ),
    Mutant(
        "error-memory-doubled",
        LEAF,
        "ERROR_MEMORY_S = 5.0",
        "ERROR_MEMORY_S = 10.0",
        REFERENCE,
        "error rates fade half as fast",
    ),
    Mutant(
        "errors-not-in-the-error-rate",
        LEAF,
        "    note_outcome(now_s, 1.0, c, cell_time)",
        "    note_outcome(now_s, 0.0, c, cell_time)",
        REFERENCE,
        "a leaf's error rate stays 0",
    ),
    Mutant(
        "prefill-for-all-at-once",
        CELLS,
        "    server_free[s, 0] = first_token_s\n",
        "    server_free[s, 0] = now_s\n",
        REFERENCE,
        "prefill is no queue",
    ),
    Mutant(
        "decode-before-prefill",
        CELLS,
        "done_s = max(first_token_s, free_s) + decode_s",
        "done_s = max(now_s, free_s) + decode_s",
        REFERENCE,
        "decode does not wait for the prefill",
    ),
    Mutant(
        "output-tokens-stay-unfinished",
        CELLS,
        "        server[s, TOKENS] -= int(request[slot, OUTPUT_TOKENS])\n",
        "",
        REFERENCE,
        "servers look busier the longer they work",
    ),
    Mutant(
        "arrival-before-completion",
        CELLS,
        "while size > 0 and done_time[0] <= until_s:",
        "while size > 0 and done_time[0] < until_s:",
        INSTANT,
        "a completion makes no room for an arrival at the same instant",
    ),
    Mutant(
        "report-before-arrival",
        CELLS,
        "elif arrival_s <= probe_s:",
        "elif arrival_s < probe_s:",
        INSTANT,
        "a report misses the arrival of its instant",
    ),
    Mutant(
        "change-after-completion",
        CELLS,
        "            until_s = np.nextafter(now_s, -math.inf)",
        "            until_s = now_s",
        ("tests/test_faults.py::test_what_would_be_done_at_the_instant_of_a_crash_is_lost",),
        "what a server finishes at the instant of its crash survives it",
    ),
    Mutant(
        "report-of-an-older-ring-place",
        CELLS,
        "    k = m & (len(state.probe_error_rate[r, c]) - 1)\n    probe[k, PROBE_RIF]",
        "    k = (m + 1) & (len(state.probe_error_rate[r, c]) - 1)\n    probe[k, PROBE_RIF]",
        REFERENCE,
        "roots read the report after the one they hold",
    ),
    Mutant(
        "wire-ties-reversed",
        HEAP,
        "(a_time == b_time and requests[a, KEY] < requests[b, KEY])",
        "(a_time == b_time and requests[a, KEY] > requests[b, KEY])",
        REFERENCE,
        "requests that reach a leaf together are served in reverse",
    ),
    Mutant(
        "leaving-ties-reversed",
        HEAP,
        "return bool(requests[a, KEY] < requests[b, KEY])",
        "return bool(requests[a, KEY] > requests[b, KEY])",
        COINCIDING,
        "requests that end together leave in reverse",
    ),
    Mutant(
        "leaving-ties-by-key-alone",
        HEAP,
        "if requests[a, FIRST_TOKEN_S] != requests[b, FIRST_TOKEN_S]:",
        "if False:",
        COINCIDING,
        "who began to decode first does not leave first",
    ),
    Mutant(
        "heap-ignores-its-last-child",
        HEAP,
        "if right < last and _leaves_before(",
        "if right + 1 < last and _leaves_before(",
        REFERENCE,
        "completions leave the heap out of order",
    ),
    Mutant(
        "in-system-integral-too-long",
        INTAKE,
        "row_time[IN_SYSTEM_S] -= end_s - answer_s",
        "row_time[IN_SYSTEM_S] -= 0.0",
        REFERENCE,
        "an answered request counts as in the system to the interval's end",
    ),
    Mutant(
        "answers-an-interval-late",
        INTAKE,
        "if answer_s > end_s:",
        "if answer_s > end_s - 0.01:",
        REFERENCE,
        "answers of an interval's end are taken in with the next",
    ),
    Mutant(
        "histogram-off-by-an-octave",
        INTAKE,
        "(exponent - 1 - LOWEST_EXPONENT)",
        "(exponent - LOWEST_EXPONENT)",
        METRICS,
        "latency quantiles are doubled",
    ),
    Mutant(
        "first-token-without-the-way-back",
        INTAKE,
        "(request[slot, FIRST_TOKEN_S] + tau) - arrival_s",
        "request[slot, FIRST_TOKEN_S] - arrival_s",
        METRICS,
        "the time to first token ends at the leaf",
    ),
    Mutant(
        "warm-up-answers-are-measured",
        INTAKE,
        "return bool(params.clock[r, MEASURE_FROM_S] < arrival_s <= params.clock[r, MEASURE_TO_S])",
        "return bool(arrival_s <= params.clock[r, MEASURE_TO_S])",
        METRICS,
        "latencies of warm-up are in the metrics",
    ),
    Mutant(
        "warm-up-requests-are-measured",
        DISPATCH,
        "\n    if clock[MEASURE_FROM_S] < arrival_s <= clock[MEASURE_TO_S]:",
        "\n    if arrival_s <= clock[MEASURE_TO_S]:",
        SETTLING,
        "requests of warm-up count as measured",
    ),
    Mutant(
        "own-cell-counts-as-away",
        DISPATCH,
        "if j != own_cell and clock",
        "if j >= 0 and clock",
        METRICS,
        "every request counts as sent to another cell",
    ),
    Mutant(
        "time-per-token-from-arrival",
        INTAKE,
        "(request[slot, DONE_S] - request[slot, FIRST_TOKEN_S]) / output",
        "(request[slot, DONE_S] - request[slot, ARRIVAL_S]) / output",
        ("tests/test_task.py::test_time_per_output_token_runs_from_the_first_token_to_the_last",),
        "time per output token includes the wait",
    ),
    Mutant(
        "weights-not-clipped",
        ROUTE,
        "weight = min(max(value, low), 1.0)",
        "weight = max(value, low)",
        ACTIONS,
        "an action beyond its bounds counts in full",
    ),
    Mutant(
        "zero-row-splits-over-padding",
        ROUTE,
        "routing[r, i, j] = 1.0 / arcs",
        "routing[r, i, j] = 1.0 / cells",
        ACTIONS,
        "a row of zeros does not add up to 1 where arcs are missing",
    ),
    Mutant(
        "observed-rif-of-the-whole-cell",
        OBSERVE,
        "n = seen.rif[r, i, j] * weight",
        "n = float(seen.rif[r, i, j])",
        FIELDS,
        "RIF in the observation is not per server",
    ),
    Mutant(
        "unseen-counts-answers",
        OBSERVE,
        "(own - seen.received[r, i, j]) * weight",
        "(own - seen.answered[r, i, j]) * weight",
        FIELDS,
        "UNSEEN repeats what OUTSTANDING says",
    ),
    Mutant(
        "fields-do-not-saturate",
        OBSERVE,
        "return high if value > high else value",
        "return value",
        SATURATION,
        "observations leave their space",
    ),
    Mutant(
        "observed-latency-in-seconds",
        OBSERVE,
        "alpha = model[0] / unit_s",
        "alpha = model[0]",
        FIELDS,
        "a time of the observation is not in zero-load times",
    ),
    Mutant(
        "curve-without-its-linear-part",
        "dlb_gym/engine/curve.py",
        "latency = alpha + bend * (tail + max(u, 0.0))",
        "latency = alpha + bend * tail",
        ("tests/test_observation.py::test_the_kernels_latencies_are_those_of_the_latency_model",),
        "an overloaded cell looks idle to its model",
    ),
)
