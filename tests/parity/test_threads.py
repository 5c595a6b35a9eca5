"""Environments stepped in several threads at once give the bytes that they give one by one.

The kernels run without the interpreter's lock, so that threads really overlap in them; whatever
environments shared in memory would show here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlb_gym import calibration
from dlb_gym.envs import DLBEnv, DLBVectorEnv
from dlb_gym.trace import describe_trace, load_trace
from tests.mechanisms import scenario_with
from tests.parity.faces import CASES, MAKERS, actions_for, move, start

THREADS = 4
EPISODES, STEPS = 2, 6
JOBS = [
    ("single", "burst"),
    ("vector", "everything"),
    ("agents", "everything batching"),
    ("sb3", "2 cells of 10"),
    ("single", "everything"),
    ("single", "everything"),
    ("agents", "family"),
    ("vector", "autoscaler"),
]
"""Faces and cases; two play the same."""


@pytest.fixture(autouse=True)
def _threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def actions(case: str) -> Any:
    """Those of all steps, one after the other."""
    drawn = actions_for(DLBEnv(**CASES[case]()), 0, EPISODES, STEPS)
    return drawn.reshape(-1, *drawn.shape[2:])


def play(job: tuple[str, str], together: threading.Barrier | None = None) -> list[list[bytes]]:
    """Makes an environment and plays it, from the barrier on together with others."""
    face, case = job
    given = actions(case)
    if together is not None:
        together.wait()
    env = MAKERS[face](**CASES[case]())
    start(face, env)
    return [move(face, env, action) for action in given]


def test_whole_runs_in_four_threads_are_those_in_one() -> None:
    """Four at a time from the making of the environments on; fitted curves are looked up anew."""
    expected = [play(job) for job in JOBS]
    assert expected[4] == expected[5]
    calibration._fitted.cache_clear()
    with ThreadPoolExecutor(THREADS) as pool:
        barrier = threading.Barrier(THREADS, timeout=60)
        assert list(pool.map(play, JOBS, [barrier] * len(JOBS))) == expected


def test_environments_that_change_threads_at_every_step_go_on_as_before() -> None:
    expected = [play(job) for job in JOBS]
    faces = [face for face, _ in JOBS]
    given = [actions(case) for _, case in JOBS]
    envs = [MAKERS[face](**CASES[case]()) for face, case in JOBS]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(start, faces, envs))
        steps = [list(pool.map(move, faces, envs, now)) for now in zip(*given, strict=True)]
    assert [list(shown) for shown in zip(*steps, strict=True)] == expected


@pytest.mark.parametrize(("name", "steps"), [(None, 400), ("everything", 150)])
def test_a_batch_cut_in_four_and_stepped_by_four_threads_is_the_whole_one(
    name: str | None, steps: int
) -> None:
    """Parts of one shape, each in a thread of its own and out of step with the others."""
    part, seed = 4, 3
    scenario = scenario_with(name, warmup_s=0.3)
    rng = np.random.default_rng(0)
    given = rng.random((steps, THREADS * part, 3, 3)).astype(np.float32)

    def run(first: int, rows: int) -> list[tuple[Any, ...]]:
        env = DLBVectorEnv(rows, scenario, autoreset_mode="SameStep")
        env.reset(seed=seed + first)
        return [env.step(action[first : first + rows])[:4] for action in given]

    whole = run(0, THREADS * part)
    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(run, range(0, THREADS * part, part), [part] * THREADS))
    for expected, *cut in zip(whole, *parts, strict=True):
        for one, several in zip(expected, zip(*cut, strict=True), strict=True):
            assert np.concatenate(several).tobytes() == one.tobytes()


def test_threads_that_load_more_traces_than_are_kept_get_what_they_asked_for(
    tmp_path: Path,
) -> None:
    """The trace cache is what environments in one process share."""
    traces = []
    for k in range(6):
        path = tmp_path / f"{k}.csv"
        path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n0.0,{k},1\n1.0,{k},1\n")
        traces.append(describe_trace(path))

    def load(thread: int) -> None:
        for turn in range(300):
            k = (7 * turn + thread) % len(traces)
            assert load_trace(traces[k]).prompt_tokens.tolist() == [k, k]

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(load, range(THREADS)))
