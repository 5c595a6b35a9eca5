"""Binary min-heaps of (time, request id) in the first `size` entries of two arrays."""

from __future__ import annotations

from dlb_gym.engine.compile import part
from dlb_gym.engine.layout import KEY, FloatArray, IdArray


@part
def push(times: FloatArray, ids: IdArray, size: int, time: float, request: int) -> None:
    """Adds an entry ordered by time alone."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if times[parent] <= time:
            break
        times[hole] = times[parent]
        ids[hole] = ids[parent]
        hole = parent
    times[hole] = time
    ids[hole] = request


@part
def pop(times: FloatArray, ids: IdArray, size: int) -> int:
    """Removes and returns the id of the earliest entry of a heap ordered by time alone."""
    top = int(ids[0])
    last = size - 1
    time, request = times[last], ids[last]
    hole = 0
    child = 1
    while child < last:
        if child + 1 < last and times[child + 1] < times[child]:
            child += 1
        if time <= times[child]:
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
