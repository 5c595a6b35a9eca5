"""The simulated system as a SimPy user would write it: the yardstick of the speed comparison.

One process per request, one ``simpy.Resource`` per prefill engine and one per server's pool of
decode slots; a process per root feeds arrivals from columns drawn beforehand, a process per cell
records its state every probe interval, and a control process renews the routing vectors in force.
Cells are chosen as in ``sample`` dispatch, servers by two choices on unfinished tokens. Written
for clarity; tuned neither way.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class System:
    """What serves. Anything with these attributes will do in its place.

    Attributes:
        tau_s: One-way network latency, shape (roots, cells), nan where there is no arc.
        prefill_s_per_token: Shape (cells,).
        decode_s_per_token: Shape (cells,).
        live_servers: Per cell ((time, live count from that instant on), ...), the first at 0.
        decode_slots: Pooled slots of one server.
        queue_limit: Requests waiting or running on one server at which it is full.
        router_delay_s: Time a request spends in the root router.
        probe_interval_s: Time between two records of a cell's state.
        control_interval_s: Time between two decisions.
    """

    tau_s: Floats
    prefill_s_per_token: Floats
    decode_s_per_token: Floats
    live_servers: tuple[tuple[tuple[float, int], ...], ...]
    decode_slots: int
    queue_limit: int
    router_delay_s: float
    probe_interval_s: float
    control_interval_s: float


@dataclass(frozen=True)
class Requests:
    """What is offered: columns of equal length, each root's rows in time order."""

    root: Ints
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    u_route: Floats
    u_leaf: Floats


@dataclass(frozen=True)
class Log:
    """What became of each request, in the order of the columns; nan if it did not happen."""

    done_s: Floats
    answer_s: Floats
    error: NDArray[np.bool_]


@dataclass(frozen=True)
class Summary:
    """Requests served and answered by the horizon, and their mean end-to-end latency."""

    answered: int
    mean_latency_s: float


class Server:
    """One prefill engine and a pool of decode slots."""

    def __init__(self, env: simpy.Environment, decode_slots: int) -> None:
        self.prefill = simpy.Resource(env, capacity=1)
        self.decode = simpy.Resource(env, capacity=decode_slots)
        self.requests = 0
        self.unfinished_tokens = 0


class Cell:
    """A pool of servers behind one leaf router."""

    def __init__(self, env: simpy.Environment, system: System, index: int) -> None:
        self.env = env
        self.changes = system.live_servers[index]
        self.prefill_s_per_token = float(system.prefill_s_per_token[index])
        self.decode_s_per_token = float(system.decode_s_per_token[index])
        most = max(count for _, count in self.changes)
        self.servers = [Server(env, system.decode_slots) for _ in range(most)]
        self.live = self.changes[0][1]
        self.rif = 0
        self.reports: list[tuple[float, int, int]] = []
        env.process(self.change_live_servers())
        env.process(self.probe(system.probe_interval_s))

    def change_live_servers(self) -> Process:
        """Follow the schedule of live servers; removed ones finish what they hold."""
        for time_s, live in self.changes:
            yield self.env.timeout(time_s - self.env.now)
            self.live = live

    def probe(self, interval_s: float) -> Process:
        """Record (time, RIF, live servers) every interval."""
        while True:
            self.reports.append((self.env.now, self.rif, self.live))
            yield self.env.timeout(interval_s)

    def choose_server(self, u_leaf: float) -> Server:
        """Of two distinct live servers the one with fewer unfinished tokens."""
        first = math.floor(u_leaf * self.live)
        if self.live == 1:
            return self.servers[first]
        second = math.floor((u_leaf * self.live - first) * (self.live - 1))
        second += second >= first
        one, other = self.servers[first], self.servers[second]
        return other if other.unfinished_tokens < one.unfinished_tokens else one


class Model:
    """Roots, cells and the decision in force."""

    def __init__(self, system: System, requests: Requests, routing: Floats) -> None:
        self.env = simpy.Environment()
        self.system = system
        self.requests = requests
        self.cells = [Cell(self.env, system, j) for j in range(len(system.live_servers))]
        count = len(requests.root)
        self.log = Log(np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, np.bool_))
        self.tau_s: list[list[float]] = system.tau_s.tolist()
        self.cumulative_shares: list[list[float]] = []
        self.env.process(self.control(routing))
        for root in range(len(self.tau_s)):
            self.env.process(self.feed(root))

    def control(self, routing: Floats) -> Process:
        """Renew the decision every control interval: here, always the same matrix."""
        while True:
            self.cumulative_shares = np.cumsum(routing, axis=1).tolist()
            yield self.env.timeout(self.system.control_interval_s)

    def feed(self, root: int) -> Process:
        """Start one process per request of this root, at its arrival."""
        requests = self.requests
        mine = np.flatnonzero(requests.root == root)
        columns = (requests.arrival_s, requests.prompt_tokens, requests.output_tokens)
        uniforms = (requests.u_route, requests.u_leaf)
        rows = zip(*(column[mine].tolist() for column in columns + uniforms), strict=True)
        for index, (arrival_s, *row) in zip(mine.tolist(), rows, strict=True):
            yield self.env.timeout(arrival_s - self.env.now)
            self.env.process(self.request(root, index, *row))

    def choose_cell(self, root: int, u_route: float) -> int:
        """First cell whose cumulative share exceeds the uniform, or the last one with a share."""
        shares = self.cumulative_shares[root]
        return min(bisect_right(shares, u_route), shares.index(shares[-1]))

    def request(
        self, root: int, index: int, prompt: int, output: int, u_route: float, u_leaf: float
    ) -> Process:
        """Life of one request, from its root and back to it."""
        env, system = self.env, self.system
        chosen = self.choose_cell(root, u_route)
        cell, tau_s = self.cells[chosen], self.tau_s[root][chosen]
        yield env.timeout(system.router_delay_s + tau_s)

        server = cell.choose_server(u_leaf)
        if server.requests >= system.queue_limit:
            self.log.error[index] = True
        else:
            cell.rif += 1
            server.requests += 1
            server.unfinished_tokens += prompt + output
            with server.prefill.request() as engine:
                yield engine
                yield env.timeout(prompt * cell.prefill_s_per_token)
            server.unfinished_tokens -= prompt
            with server.decode.request() as slot:
                yield slot
                yield env.timeout(output * cell.decode_s_per_token)
            server.unfinished_tokens -= output
            server.requests -= 1
            cell.rif -= 1
            self.log.done_s[index] = env.now

        yield env.timeout(tau_s)
        self.log.answer_s[index] = env.now


def simulate(system: System, requests: Requests, routing: Floats, horizon_s: float) -> Log:
    """Run from an empty system at clock 0 to the horizon.

    Args:
        system: The system that serves.
        requests: The requests offered.
        routing: Shares of cells, shape (roots, cells), zero off the arcs.
        horizon_s: Clock at which the run stops.

    Returns:
        What became of each request.
    """
    model = Model(system, requests, routing)
    model.env.run(until=horizon_s)
    return model.log


def run(system: System, requests: Requests, routing: Floats, horizon_s: float) -> Summary:
    """Count and mean latency of the requests served and answered by the horizon; see simulate."""
    log = simulate(system, requests, routing, horizon_s)
    served = ~log.error & ~np.isnan(log.answer_s)
    latency_s = log.answer_s[served] - requests.arrival_s[served]
    mean_s = float(latency_s.mean()) if latency_s.size else math.nan
    return Summary(int(served.sum()), mean_s)
