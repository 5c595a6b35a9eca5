"""The autoscaler beside the cells of the reference (docs/autoscaling.md).

Every ``interval_s``, after all else of that instant, it looks at what reached each cell's leaf
since it last did, and at the requests in flight, without delay. With k servers live,

    utilisation        k* = ceil(received / (interval x nominal rate of a server x target)),
                       since the k of k U / target and of U's capacity cancel
    marginal latency   k* is what is ordered, and a tenth of the scenario's cell more where 1 /
                       mu'(n) exceeds target x zero-load time, as much less where it is below
                       sqrt(target) x zero-load time

What a cell releases stops at the next instant; what it orders serves after the delay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from dlb_gym.disturbances import Change
from tests.reference.affinity import latency_s
from tests.reference.cell import Cell
from tests.reference.events import Agenda, Rank
from tests.reference.system import Model, System

ROUNDING = 1e-9
"""A want above a whole number by no more than this is that number."""


@dataclass(eq=False)
class Order:
    """Servers that a cell shall have from an instant on; a release may cut it back until then."""

    due_s: float
    servers: int


class Autoscaler:
    """The autoscaler of one run.

    Args:
        agenda: Of the run.
        system: With an autoscaler, server rates and zero-load times.
        cells: All cells.
    """

    def __init__(self, agenda: Agenda, system: System, cells: Sequence[Cell]) -> None:
        rule = system.mechanisms.autoscaler
        assert rule is not None
        self._rule = rule
        self._agenda = agenda
        self._system = system
        self._cells = cells
        servers = [cell.live for cell in cells]
        self._scenarios = servers
        share, extra = Fraction(str(rule.least_share)), Fraction(str(rule.extra_servers))
        self._least = [max(math.ceil(count * share), 1) for count in servers]
        self._most_in_all = math.floor(sum(servers) * (1 + extra))
        self._ordered = list(servers)
        self._under_way: list[list[Order]] = [[] for _ in cells]
        self._received_before = [0] * len(cells)

    def act(self, step: int) -> None:
        """It is the end of an interval of control; perhaps of the autoscaler's, too."""
        every = round(self._rule.interval_s / self._system.control_interval_s)
        last = round(self._system.mechanisms.measured[1] / self._system.control_interval_s)
        if step % every != 0 or not 0 < step < last:
            return
        by_utilisation = self._rule.kind == "utilisation"
        wants = [
            max(
                self._by_utilisation(number) if by_utilisation else self._by_latency(number),
                self._least[number],
            )
            for number in range(len(self._cells))
        ]
        self._received_before = [cell.received for cell in self._cells]
        for number, servers in enumerate(self._granted(wants)):
            self._change(number, servers)

    def _by_utilisation(self, number: int) -> int:
        received = self._cells[number].received - self._received_before[number]
        server_takes = self._rule.interval_s * self._system.mechanisms.server_rps[number]
        return math.ceil(received / server_takes / self._rule.target_utilisation - ROUNDING)

    def _by_latency(self, number: int) -> int:
        cell, target = self._cells[number], self._rule.target_marginal
        relative = marginal_latency_s(cell.model, cell.rif / cell.live)
        relative /= self._system.mechanisms.zero_load_s[number]
        step = max(round(self._scenarios[number] / 10), 1)
        if relative > target:
            return self._ordered[number] + step
        return self._ordered[number] - (step if relative < math.sqrt(target) else 0)

    def _granted(self, wants: Sequence[int]) -> list[int]:
        """Releases first; what they leave of the fleet's most goes to the largest relative want."""
        granted = [min(pair) for pair in zip(wants, self._ordered, strict=True)]
        relative = [Fraction(want, had) - 1 for want, had in zip(wants, granted, strict=True)]
        for number in sorted(range(len(wants)), key=lambda number: -relative[number]):
            spare = self._most_in_all - sum(granted)
            granted[number] += min(wants[number] - granted[number], spare)
        return granted

    def _change(self, number: int, servers: int) -> None:
        before, self._ordered[number] = self._ordered[number], servers
        now_s = self._agenda.now_s
        next_instant_s = math.nextafter(now_s, math.inf)
        if servers > before:
            self._serve_from(
                number, Order(max(now_s + self._rule.delay_s, next_instant_s), servers)
            )
        if servers < before:
            for order in self._under_way[number]:
                order.servers = min(order.servers, servers)
            if self._cells[number].live > servers:
                self._serve_from(number, Order(next_instant_s, servers))

    def _serve_from(self, number: int, order: Order) -> None:
        self._under_way[number].append(order)
        self._agenda.at(order.due_s, Rank.CHANGE, partial(self._carry_out, number, order))

    def _carry_out(self, number: int, order: Order) -> None:
        self._under_way[number].remove(order)
        self._cells[number].change(Change(order.due_s, order.servers))


def marginal_latency_s(model: Model, n: float) -> float:
    """1 / mu'(n) at n requests in flight a server, mu(n) = n / l(n): l^2 / (l - n l')."""
    _, beta, knee, smoothing = model
    u = (n - knee) / smoothing
    slope = beta / (1.0 + math.exp(-u)) if u > 0.0 else beta * math.exp(u) / (1.0 + math.exp(u))
    latency = latency_s(model, n)
    return latency**2 / (latency - n * slope)
