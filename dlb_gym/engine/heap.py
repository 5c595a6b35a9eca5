"""Binary min-heaps of (time, request id) in the first `size` entries of two arrays."""

from __future__ import annotations

from dlb_gym.engine.compile import part
from dlb_gym.engine.layout import FIRST_TOKEN_S, KEY, FloatArray, IdArray


@part
def push(times: FloatArray, ids: IdArray, size: int, time: float, request: int) -> None:
    """Adds an entry ordered by time, then id."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if times[parent] < time or (times[parent] == time and ids[parent] < request):
            break
        times[hole] = times[parent]
        ids[hole] = ids[parent]
        hole = parent
    times[hole] = time
    ids[hole] = request


@part
def pop(times: FloatArray, ids: IdArray, size: int) -> int:
    """Removes and returns the id of the earliest entry of a heap ordered by time, then id."""
    top = int(ids[0])
    last = size - 1
    time, request = times[last], ids[last]
    hole = 0
    child = 1
    while child < last:
        right = child + 1
        if right < last and (
            times[right] < times[child]
            or (times[right] == times[child] and ids[right] < ids[child])
        ):
            child = right
        if time < times[child] or (time == times[child] and request < ids[child]):
            break
        times[hole] = times[child]
        ids[hole] = ids[child]
        hole = child
        child = 2 * hole + 1
    times[hole] = time
    ids[hole] = request
    return top


@part
def _before(a_time: float, a: int, b_time: float, b: int, requests: FloatArray) -> bool:
    """Order on the wire: leaf time, then root, then send number."""
    return a_time < b_time or (a_time == b_time and requests[a, KEY] < requests[b, KEY])


@part
def push_wire(
    times: FloatArray, ids: IdArray, size: int, time: float, request: int, requests: FloatArray
) -> None:
    """Adds a message, ordered by leaf time, root and send number."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if not _before(time, request, times[parent], ids[parent], requests):
            break
        times[hole] = times[parent]
        ids[hole] = ids[parent]
        hole = parent
    times[hole] = time
    ids[hole] = request


@part
def pop_wire(times: FloatArray, ids: IdArray, size: int, requests: FloatArray) -> int:
    """Removes and returns the id of the message that reaches its leaf first."""
    top = int(ids[0])
    last = size - 1
    time, request = times[last], ids[last]
    hole = 0
    child = 1
    while child < last:
        right = child + 1
        if right < last and _before(times[right], ids[right], times[child], ids[child], requests):
            child = right
        if not _before(times[child], ids[child], time, request, requests):
            break
        times[hole] = times[child]
        ids[hole] = ids[child]
        hole = child
        child = 2 * hole + 1
    times[hole] = time
    ids[hole] = request
    return top


@part
def _leaves_before(a_time: float, a: int, b_time: float, b: int, requests: FloatArray) -> bool:
    """Order in which requests leave a cell: time, then first token, then root and send number."""
    if a_time != b_time:
        return a_time < b_time
    if requests[a, FIRST_TOKEN_S] != requests[b, FIRST_TOKEN_S]:
        return bool(requests[a, FIRST_TOKEN_S] < requests[b, FIRST_TOKEN_S])
    return bool(requests[a, KEY] < requests[b, KEY])


@part
def push_done(
    times: FloatArray, ids: IdArray, size: int, time: float, request: int, requests: FloatArray
) -> None:
    """Adds a request in flight, ordered as `_leaves_before` says."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if not _leaves_before(time, request, times[parent], ids[parent], requests):
            break
        times[hole] = times[parent]
        ids[hole] = ids[parent]
        hole = parent
    times[hole] = time
    ids[hole] = request


@part
def pop_done(times: FloatArray, ids: IdArray, size: int, requests: FloatArray) -> int:
    """Removes and returns the id of the request that leaves its cell first."""
    top = int(ids[0])
    last = size - 1
    time, request = times[last], ids[last]
    hole = 0
    child = 1
    while child < last:
        right = child + 1
        if right < last and _leaves_before(
            times[right], ids[right], times[child], ids[child], requests
        ):
            child = right
        if not _leaves_before(times[child], ids[child], time, request, requests):
            break
        times[hole] = times[child]
        ids[hole] = ids[child]
        hole = child
        child = 2 * hole + 1
    times[hole] = time
    ids[hole] = request
    return top
