"""Hashing of requests to cells by a table: a session's entry is its own, others draw one.

A table is filled anew when the capacities that probes show change, and only for the roots to which
they do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from dlb_gym.decision import Decision, Mask
from dlb_gym.policy import Information, Policy, TaskSpec

ENTRIES = 1021
"""A prime, a hundred times ten cells. Maglev's own default, 65,537, is meant for hundreds of
backends, and every root of every row keeps a table of its own here."""

Cells = NDArray[np.int16]


class Hashing(Policy):
    """A policy that is a table.

    Args:
        entries: Of a table, at least 1.

    Raises:
        ValueError: There is no entry.
    """

    information: Information = "local"

    def __init__(self, entries: int = ENTRIES) -> None:
        if entries < 1:
            raise ValueError(f"entries = {entries} must be at least 1; {ENTRIES} is the default")
        self.entries = entries

    @abstractmethod
    def filled(self, capacities: tuple[float, ...]) -> Cells:
        """The table over cells of these capacities; those of capacity 0 get no entry."""

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        """Start anew for a batch."""
        super().reset(spec, num_replications, seed)
        shape = (num_replications, spec.num_roots)
        self._capacity = np.full((*shape, spec.num_cells), -1.0, dtype=np.float32)
        self._table = np.zeros((*shape, self.entries), dtype=np.int16)

    def restart(self, rows: Mask) -> None:
        """A table follows from what is observed: there is nothing to forget."""

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """The tables; another array where one of them is new."""
        fields = self.fields(observation)
        capacity = np.where(fields["admissible"] > 0.0, fields["capacity_load"], np.float32(0.0))
        changed = np.argwhere((capacity != self._capacity).any(axis=-1))
        if len(changed):
            self._table = self._table.copy()
            for row, root in changed.tolist():
                self._table[row, root] = self._entries_of(capacity[row, root], fields, row, root)
            self._capacity = capacity
        return Decision(table=self._table)

    def _entries_of(
        self,
        capacity: NDArray[np.float32],
        fields: dict[str, NDArray[np.float32]],
        row: int,
        root: int,
    ) -> Cells:
        if not capacity.any():  # no arc has a server left, or there is no arc: all arcs alike
            capacity = fields["admissible"][row, root]
        if not capacity.any():
            return np.zeros(self.entries, dtype=np.int16)
        return self.filled(tuple(capacity.tolist()))


class Maglev(Hashing):
    """Maglev's consistent hashing (Eisenbud et al., NSDI 2016, section 3.4).

    Cell j prefers the entries in the order (offset_j + t skip_j) mod M, t = 0, 1, ..., with offset
    and skip two hashes of its number and M prime. Cells take turns, each the first entry of its
    order that is free, until all are taken. A cell of weight w_j, its nominal rate by the probe
    held, takes part in a share w_j / max w of the turns.

    Args:
        entries: M, a prime.

    Raises:
        ValueError: M is no prime.
    """

    name = "maglev"

    def __init__(self, entries: int = ENTRIES) -> None:
        super().__init__(entries)
        if entries < 2 or any(entries % d == 0 for d in range(2, int(entries**0.5) + 1)):
            raise ValueError(
                f"entries = {entries} must be a prime, so that a cell's order meets every entry; "
                f"{ENTRIES} is the default"
            )

    def filled(self, capacities: tuple[float, ...]) -> Cells:
        """Maglev's table."""
        return _maglev_table(self.entries, capacities)


class EqualCostHashing(Hashing):
    """ECMP, equal-cost multipath, as routers spread flows (Ananta, Patel et al., SIGCOMM 2013).

    A flow's hash modulo the number n of cells that are up: equal shares whatever a cell can serve,
    and when n changes most flows move.
    """

    name = "ecmp"

    def filled(self, capacities: tuple[float, ...]) -> Cells:
        """Entry m belongs to live cell number m mod n."""
        live = np.flatnonzero(capacities).astype(np.int16)
        return np.asarray(np.resize(live, self.entries))


def _hash(cell: int, purpose: bytes, modulus: int) -> int:
    digest = blake2b(cell.to_bytes(4, "little"), digest_size=8, salt=purpose).digest()
    return int.from_bytes(digest, "little") % modulus


@lru_cache(maxsize=4096)
def _maglev_table(entries: int, weights: tuple[float, ...]) -> Cells:
    offsets = [_hash(cell, b"offset", entries) for cell in range(len(weights))]
    skips = [1 + _hash(cell, b"skip", entries - 1) for cell in range(len(weights))]
    return fill_in_turns(entries, weights, offsets, skips)


def fill_in_turns(
    entries: int, weights: Sequence[float], offsets: Sequence[int], skips: Sequence[int]
) -> Cells:
    """A table of cells that take turns, each in its own order of entries.

    Args:
        entries: M, a prime.
        weights: Of the cells, at least 0, not all 0.
        offsets: First entry of a cell's order.
        skips: From one entry of it to the next, 1 to M - 1.
    """
    heaviest = max(weights)
    turns, credit = [0] * len(weights), [0.0] * len(weights)
    table = np.full(entries, -1, dtype=np.int16)
    free = entries
    while True:
        for cell, weight in enumerate(weights):
            credit[cell] += weight / heaviest
            if weight == 0.0 or credit[cell] < 1.0:
                continue
            credit[cell] -= 1.0
            entry = (offsets[cell] + turns[cell] * skips[cell]) % entries
            while table[entry] >= 0:
                turns[cell] += 1
                entry = (offsets[cell] + turns[cell] * skips[cell]) % entries
            table[entry] = cell
            free -= 1
            if free == 0:
                return table
