"""Work conservation: no engine and no slot idles while a request waits for it, and all are FIFO.

Read off the log alone, with each request's seconds of work from its token counts: the intervals in
which a request waits for a stage or is served by it. At every instant, at every server,

    served in prefill <= 1, and = 1 while a request waits for prefill,
    served in decode <= c,  and = c while a request waits for a slot,

requests begin each stage in the order in which they reached it, and each is served for exactly its
work. So any two servers that keep these rules have the same workload process, from which the time
averages of queueing theory follow.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.laws.intervals import assert_identity
from tests.laws.station import Service, log_with_work, played, station

FloatArray = NDArray[np.float64]
ROWS = 4
ROUNDING_S = 1e-9
SLOTS = 3


def waits_and_services(
    ready_s: FloatArray, end_s: FloatArray, work_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Changes of the numbers that wait and that are served, (2 n, 2) each: time, change.

    Waits and services are cut by `ROUNDING_S`, so that one slot's next service does not overlap
    its last.
    """
    start_s = end_s - work_s
    ones = np.ones(len(ready_s))
    changes = []
    for first, last in ((ready_s, start_s), (start_s, end_s)):
        kept = last - first > 4 * ROUNDING_S
        inner = (first[kept] + ROUNDING_S, last[kept] - ROUNDING_S)
        times = np.concatenate(inner)
        changes.append(np.column_stack((times, np.concatenate((ones[kept], -ones[kept])))))
    return changes[0], changes[1]


def assert_conserves_work(
    case: str, ready_s: FloatArray, end_s: FloatArray, work_s: FloatArray, places: int
) -> float:
    """The rules above for one stage of one server; returns the share of requests that waited."""
    order = np.lexsort((end_s - work_s, ready_s))
    start_s = (end_s - work_s)[order]
    assert (start_s >= ready_s[order] - ROUNDING_S).all(), "served before it was there"
    assert (np.diff(start_s) >= -ROUNDING_S).all(), "served out of turn"
    waits, services = waits_and_services(ready_s, end_s, work_s)
    table = np.concatenate(
        (
            np.column_stack((waits, np.zeros(len(waits)))),
            np.column_stack((services, np.ones(len(services)))),
        )
    )
    table = table[np.argsort(table[:, 0], kind="stable")]
    waiting = np.cumsum(np.where(table[:, 2] == 0, table[:, 1], 0.0))
    served = np.cumsum(np.where(table[:, 2] == 1, table[:, 1], 0.0))
    lasting = np.diff(table[:, 0], append=table[-1, 0]) > 4 * ROUNDING_S
    assert (served[lasting] <= places).all(), "more at once than there are places"
    idle = int((served[lasting & (waiting > 0)] != places).sum())
    law = "work conservation: no place idles while a request waits"
    assert_identity(law, case, int(lasting.sum()), idle)
    return len(waits) / 2 / len(ready_s)


@pytest.mark.parametrize(
    ("servers", "load", "queue_limit"), [(1, 0.8, 256), (1, 1.5, 20), (4, 0.9, 256)]
)
def test_no_place_idles_while_a_request_waits(servers: int, load: float, queue_limit: int) -> None:
    """Both stages of every server, from the first request to the last.

    Catches: a slot that is never used or used twice at once, a request that waits for another slot
    than the first free one, work that takes longer or shorter than its tokens, service out of turn,
    decode before the end of prefill.
    """
    scenario = station(
        100.0 * load * servers,
        prefill=Service(0.01),
        decode=Service(0.03),
        slots=SLOTS,
        servers=servers,
        warmup_s=0.0,
        horizon_s=50.0,
        server={"decode_engines": 1, "slots_per_engine": SLOTS, "queue_limit": queue_limit},
    )
    simulator = played(scenario, ROWS, log=True)
    for r in range(ROWS):
        log = log_with_work(simulator, scenario, r)
        assert set(np.unique(log["server"]).astype(int)) - {-1} == set(range(servers))
        for s in range(servers):
            own = {key: column[log["server"] == s] for key, column in log.items()}
            case = f"N = {servers}, rho = {load}, "
            leaf_s, first_token_s, done_s = own["leaf_s"], own["first_token_s"], own["done_s"]
            first = assert_conserves_work(
                f"{case}prefill", leaf_s, first_token_s, own["prefill_s"], 1
            )
            second = assert_conserves_work(
                f"{case}decode", first_token_s, done_s, own["decode_s"], SLOTS
            )
            assert min(first, second) > 0.2
