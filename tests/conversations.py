"""Requests of sessions written down one by one, for systems of `scripted`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym.scenario import Scenario
from dlb_gym.workload import CHUNK_S, NO_SESSION, Workload
from tests.scripted import Played, Routing, system

SERVER_0, SERVER_1 = 0.25, 0.75
"""Draws of the leaf with which the first choice of two idle servers is this one."""


@dataclass(frozen=True)
class Turn:
    """A request of a session; its scheduling hash is the session's number if it is not given."""

    at_s: float
    prompt: int
    output: int
    session: int = -1
    prefix: int = 0
    u_leaf: float = SERVER_0
    hash: int | None = None

    @property
    def row(self) -> tuple[float, ...]:
        own = (self.at_s, self.prompt, self.output, 0.5, self.u_leaf)
        if self.session < 0:
            return (*own, *NO_SESSION)
        return (*own, self.session, self.session if self.hash is None else self.hash, self.prefix)


class Conversations(Workload):
    """Gives the turns of a list, root by root, instead of drawn ones."""

    def __init__(self, scenario: Scenario, turns: Sequence[Sequence[Turn]]) -> None:
        super().__init__(scenario, 0, 0)
        self._tables = [
            np.array([turn.row for turn in own], dtype=np.float64).reshape(-1, 8) for own in turns
        ]

    def chunk(self, index: int) -> list[NDArray[np.float64]]:
        return [table[table[:, 0] // CHUNK_S == index] for table in self._tables]


def talking(
    turns: Sequence[Turn],
    servers: Sequence[int] = (1,),
    affinity: dict[str, Any] | str | None = None,
    routing: Routing | None = None,
    **changes: Any,
) -> Played:
    """One root's turns in a scripted system; `affinity` is its kind, or its table."""
    table = {"kind": affinity} if isinstance(affinity, str) else affinity
    scenario = system(servers, affinity=table, demand={"sessions": {}}, **changes)
    played = Played(scenario, [], routing=routing)
    played.simulator._workloads[0] = Conversations(scenario, [turns])
    return played


def waits_s(played: Played) -> list[float]:
    """Time from the leaf to the first token of every answer, in the order of arrival."""
    log = played.log
    times: list[float] = (log["first_token_s"] - log["leaf_s"]).tolist()
    return times


def column(played: Played, name: str) -> list[int]:
    """Of the log, in the order of arrival."""
    return [int(number) for number in played.log[name]]


def chosen(
    turns: Sequence[Turn], rule: str | dict[str, Any], servers: int = 2, **changes: Any
) -> list[int]:
    """The server of every turn; -1 for an error."""
    table = {"rule": rule} if isinstance(rule, str) else rule
    played = talking(turns, (servers,), leaf=table, **changes).to(14.9)
    played.balance()
    servers_of = column(played, "server")
    assert len(servers_of) == len(turns)
    return servers_of
