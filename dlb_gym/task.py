"""The task: decisions in, observations, rewards and ends of episodes out. Batched; no face."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlb_gym.decision import Decision, check_decision
from dlb_gym.engine import layout
from dlb_gym.episodes import EpisodeSource
from dlb_gym.measurements import ERROR_KINDS, quantile_s
from dlb_gym.messages import shown, whole
from dlb_gym.observation import Observation
from dlb_gym.policy import TaskSpec, proportional
from dlb_gym.rates import nominal_rates_rps, offered_rate_rps, zero_load_time_s
from dlb_gym.reward import RewardFacts, make_reward
from dlb_gym.scenario import Scenario
from dlb_gym.simulator import Simulator
from dlb_gym.sizes import require_room

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Mask = NDArray[np.bool_]

DRAIN_INTERVALS = 100
MAX_SEED = 2**63 - 1
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


class Step(NamedTuple):
    """What an interval brought.

    Attributes:
        observation: (n, size) float32.
        reward: (n,).
        truncated: (n,) rows whose horizon ended.
        reward_terms: The reward's parts, (n,) each.
    """

    observation: NDArray[np.float32]
    reward: FloatArray
    truncated: Mask
    reward_terms: dict[str, FloatArray]


class Task:
    """A batch of replications that decisions move.

    Args:
        source: The scenarios.
        num_replications: n >= 1.
        reward: See `reward.make_reward`.
        max_episode_steps: Ends episodes earlier than their horizon.
        max_cells: Pads roots and cells to this many.
        log: Keep a record of every answered request.

    Raises:
        ValueError: A size is below 1, `max_cells` below what the source can draw, or the reward is
            unknown.
    """

    def __init__(
        self,
        source: EpisodeSource,
        num_replications: int,
        *,
        reward: str = "latency",
        max_episode_steps: int | None = None,
        max_cells: int | None = None,
        log: bool = False,
    ) -> None:
        self._source = source
        self._reward = make_reward(reward, num_replications)
        if max_episode_steps is not None and whole("max_episode_steps", max_episode_steps) < 1:
            raise ValueError(f"max_episode_steps = {max_episode_steps} must be at least 1")
        self._max_episode_steps = max_episode_steps
        roots, cells = source.max_roots, source.max_cells
        if max_cells is not None:
            if whole("max_cells", max_cells) < max(roots, cells):
                raise ValueError(
                    f"max_cells = {max_cells} is too small for {roots} roots and {cells} cells; "
                    "raise it or leave it out"
                )
            roots = cells = max_cells
        fleet = f"a batch for {roots:,} roots and {cells:,} cells"
        axes = source.axes._replace(roots=roots, cells=cells)
        require_room(fleet, axes, num_replications)
        self.simulator = Simulator(num_replications, roots, cells, log)
        self.spec = TaskSpec(roots, cells, Observation(roots, cells))
        n = num_replications
        self.num_replications = n
        self.scenarios: list[Scenario | None] = [None] * n
        self.seeds: IntArray = np.full(n, -1, dtype=np.int64)
        self.episodes: IntArray = np.full(n, -1, dtype=np.int64)
        self._end_step: IntArray = np.zeros(n, dtype=np.int64)
        self._dispatch: IntArray = np.zeros(n, dtype=np.int64)
        self._facts = RewardFacts(np.ones(n), np.ones(n), np.ones(n), np.zeros(n))
        self._capacity = np.zeros((n, roots, cells))
        self._constants: NDArray[np.float32] = np.zeros(0, dtype=np.float32)
        self._table: NDArray[np.int16] | None = None

    @property
    def admissible(self) -> Mask:
        """(n, R, C) arcs."""
        return self.simulator.admissible

    def reset(
        self, rows: Mask | None = None, seeds: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """Starts episodes, warm, and observes.

        Args:
            rows: Rows to start, (n,); None: all.
            seeds: New seeds of those rows, whose episodes count from 0 again. Without, the next
                episode under the old seed; rows never seeded get a seed from the system.

        Returns:
            Observation (n, size) of all rows.

        Raises:
            ValueError: There are not as many seeds as rows, or a seed is negative.
        """
        chosen = np.arange(self.num_replications) if rows is None else np.flatnonzero(rows)
        if seeds is not None:
            self.seed(chosen, seeds)
        unseeded = chosen[self.seeds[chosen] < 0]
        if len(unseeded) > 0:
            fresh = np.random.SeedSequence().generate_state(len(unseeded))
            self.seed(unseeded, [int(seed) for seed in fresh])
        for r in chosen:
            self._start(int(r))
        self._warm_up(chosen)
        self._constants = self.spec.observation.constants(self.simulator.view())
        return self.observe()

    def seed(self, chosen: IntArray, seeds: Sequence[int]) -> None:
        """Gives rows new seeds; their episodes count from 0 again at the next reset.

        Raises:
            ValueError: There are not as many seeds as rows, or a seed is negative.
        """
        if len(seeds) != len(chosen):
            raise ValueError(
                f"{len(seeds)} seeds for {len(chosen)} rows; give one seed for every row"
            )
        for seed in seeds:
            if whole("seed", seed) < 0:
                raise ValueError(f"seed = {seed} is negative; seeds must be at least 0")
            if seed > MAX_SEED:
                raise ValueError(f"seed = {shown(seed)} must be at most {MAX_SEED}; choose another")
        self.seeds[chosen] = seeds
        self.episodes[chosen] = -1

    def _start(self, r: int) -> None:
        self.episodes[r] += 1
        seed, episode = int(self.seeds[r]), int(self.episodes[r])
        scenario = self._source.scenario(r, seed, episode)
        self.simulator.reset_row(r, scenario, seed, episode)
        self.scenarios[r] = scenario
        self._table = None  # a table that was checked may not fit the new arcs
        self._reward.restart(r)
        self._dispatch[r] = layout.SMOOTH if scenario.dispatch == "smooth" else layout.SAMPLE
        steps = scenario.intervals(scenario.settle_s) + scenario.intervals(scenario.horizon_s)
        if self._max_episode_steps is not None:
            steps = min(steps, self._max_episode_steps)
        self._end_step[r] = scenario.intervals(scenario.warmup_s) + steps
        rates_rps = nominal_rates_rps(scenario)
        self._capacity[r] = 0.0
        self._capacity[r, :, : len(rates_rps)] = rates_rps
        self._facts.rate_rps[r] = offered_rate_rps(scenario)
        self._facts.zero_load_time_s[r] = zero_load_time_s(scenario)
        self._facts.control_interval_s[r] = scenario.control_interval_s
        self._facts.error_penalty[r] = scenario.error_penalty

    def _warm_up(self, chosen: IntArray) -> None:
        """An empty system flatters every policy: the split by capacity fills it first."""
        split = proportional(self._capacity, self.admissible)
        self.simulator.set_routing(split, self._dispatch)
        target = self.simulator.step.copy()
        for r in chosen:
            scenario = self.scenarios[r]
            if scenario is not None:
                target[r] = scenario.intervals(scenario.warmup_s)
        self.simulator.advance(target)

    def observe(self) -> NDArray[np.float32]:
        """Observation (n, size) of what roots know now."""
        return self.spec.observation.encode(self.simulator.view(), self._constants)

    def step(self, decision: Decision, rows: Mask | None = None) -> Step:
        """Holds a decision for one control interval.

        Args:
            decision: For all rows.
            rows: Rows that move, (n,); the others stay, with reward 0. None: all.

        Raises:
            ValueError: The decision is no valid one (see `policy.check_decision`).
        """
        if decision.table is None or decision.table is not self._table:
            check_decision(decision, self.admissible)
            self._table = decision.table
        self.simulator.follow(decision, self._dispatch)
        return self._advance(rows)

    def step_routing(self, routing: FloatArray, rows: Mask | None = None) -> Step:
        """As `step`, for a routing matrix known to be valid."""
        self.simulator.set_routing(routing, self._dispatch)
        return self._advance(rows)

    def _advance(self, rows: Mask | None) -> Step:
        moves = 1 if rows is None else rows.astype(np.int64)
        self.simulator.advance(self.simulator.step + moves)
        terms = self._reward.terms(self._facts, self.simulator)
        if rows is not None:
            terms = {name: np.where(rows, term, 0.0) for name, term in terms.items()}
        reward = functools.reduce(np.add, terms.values())
        return Step(self.observe(), reward, self.simulator.step >= self._end_step, terms)

    def drain(self) -> None:
        """After the horizon: no arrivals, no decisions, until every request is answered."""
        while True:
            books = self.simulator.books()
            unfinished = books.arrived - books.answered - books.errors > 0
            if not unfinished.any():
                return
            self.simulator.advance(self.simulator.step + DRAIN_INTERVALS * unfinished)

    def _live_capacity(self, r: int) -> float:
        """Requests that row r's live servers could serve since measuring began."""
        clock_s, interval_s = self.simulator.time_s[r], self._facts.control_interval_s[r]
        return self.simulator.live_capacity(r, min(clock_s, self._end_step[r] * interval_s))

    def summary(self, r: int) -> dict[str, float]:
        """Metrics of row r's measured requests so far; see docs/environment.md.

        Latencies are NaN where nothing was answered, times per output token where no answer has
        any.
        """
        measured = self.simulator.measurements()
        books = self.simulator.books()
        answered = int(measured.latency_histogram[r].sum())
        arrived, errors = int(measured.arrived[r]), int(measured.errors[r])
        metrics: dict[str, float] = {
            "requests": arrived,
            "answered": answered,
            "errors": errors,
            "unfinished": arrived - answered - errors,
            "error_rate": errors / max(answered + errors, 1),
            "utilisation": _ratio(arrived, self._live_capacity(r)),
            "cross_cell_share": float(measured.arrived_away[r]) / max(arrived, 1),
            "in_system_at_end": float(books.arrived[r] - books.answered[r] - books.errors[r]),
            "zero_load_time_s": float(self._facts.zero_load_time_s[r]),
        }
        for kind, count in zip(ERROR_KINDS, measured.errors_by_kind[r], strict=True):
            metrics[f"errors_{kind}"] = int(count)
        metrics |= self._counted(r, arrived)
        for prefix, total_s, histogram in (
            ("latency", measured.latency_sum_s, measured.latency_histogram),
            ("ttft", measured.first_token_sum_s, measured.first_token_histogram),
            ("tpot", measured.token_time_sum_s, measured.token_time_histogram),
        ):
            metrics[f"{prefix}_mean_s"] = _ratio(total_s[r], int(histogram[r].sum()))
            values = quantile_s(histogram[r], list(QUANTILES.values()))
            for name, value in zip(QUANTILES, values, strict=True):
                metrics[f"{prefix}_{name}_s"] = float(value)
        return metrics

    def _counted(self, r: int, arrived: int) -> dict[str, float]:
        """What mechanisms counted; a row has the same names with and without any."""
        counts = self.simulator.counts()
        messages, resent, eligible, hits, prompt_tokens, saved_tokens = (
            (0, 0, 0.0, 0.0, 0.0, 0.0) if counts is None else (column[r] for column in counts)
        )
        return {
            "messages": int(messages),
            "resent": int(resent),
            "prefix_share": float(eligible) / max(arrived, 1),
            "prefix_hit_rate": float(hits) / max(float(eligible), 1.0),
            "prefill_saved": float(saved_tokens) / max(float(prompt_tokens), 1.0),
        }


def _ratio(total: Any, count: Any) -> float:
    return float(total) / float(count) if count else float("nan")
