"""What the leaf replicas of a cell know of one another and of the servers (docs/telemetry.md).

Each knows its own requests in flight now. At a gathering each learns how many the others have, and
requests whose replica is dead are found: from then on all know how many of these there are. A crash
takes a replica's count from its peers as well, until they next gather. At a look all learn the
servers' unfinished tokens and requests; until the next one each adds what it placed itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.servers import Server
from tests.reference.system import Request


class Leaves:
    """The replicas of one cell.

    Args:
        count: How many.
        servers: Of the cell; there may come to be more.
        looking: Whether they see the servers at looks only, or as they are.
    """

    def __init__(self, count: int, servers: Sequence[Server], looking: bool) -> None:
        self._servers = servers
        self._looking = looking
        self._own: list[set[Request]] = [set() for _ in range(count)]
        self._gathered = [0] * count
        self._orphans: set[Request] = set()
        self._orphans_found = False
        self._seen: dict[int, tuple[int, int]] = {}
        self._placed: dict[tuple[int, int], list[int]] = {}

    def add(self, request: Request) -> None:
        """A request is in flight at its replica."""
        self._own[request.replica].add(request)

    def remove(self, request: Request) -> None:
        """It is no longer."""
        self._own[request.replica].discard(request)
        self._orphans.discard(request)

    def crash(self, replica: int) -> None:
        self._orphans |= self._own[replica]
        self._own[replica] = set()
        self._gathered[replica] = 0
        self._orphans_found = False

    def gather(self) -> None:
        self._gathered = [len(own) for own in self._own]
        self._orphans_found = True

    def known_rif(self, replica: int) -> int:
        peers = sum(self._gathered) - self._gathered[replica]
        return len(self._own[replica]) + peers + self._orphans_found * len(self._orphans)

    def look(self) -> None:
        self._seen = {s: (server.tokens, server.requests) for s, server in enumerate(self._servers)}
        self._placed = {}

    def place(self, replica: int, server: int, tokens: int) -> None:
        """A replica remembers a request that it gave to a server."""
        self._placed.setdefault((replica, server), []).append(tokens)

    def tokens(self, replica: int, server: int) -> int:
        """Unfinished tokens of a server as a replica sees them."""
        if not self._looking:
            return self._servers[server].tokens
        return self._seen.get(server, (0, 0))[0] + sum(self._placed.get((replica, server), ()))

    def requests(self, replica: int, server: int) -> int:
        """Unfinished requests likewise."""
        if not self._looking:
            return self._servers[server].requests
        return self._seen.get(server, (0, 0))[1] + len(self._placed.get((replica, server), ()))
