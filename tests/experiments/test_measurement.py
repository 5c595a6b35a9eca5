"""Measurements are made once, kept whole, and made anew when anything that decides them changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import experiments
from baselines.static import WeightedRandom
from dlb_gym.evaluation import run_all
from dlb_gym.runs import Run, seeded
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import override
from experiments.runner import Measurement, evaluated, played
from experiments.runner.discovery import code_of
from experiments.runner.measurement import measure
from tests.scenarios_by_hand import two_cells

HERE = __name__


def short(**changes: Any) -> Scenario:
    return override(two_cells(), {"warmup_s": 1.0, "horizon_s": 2.0, **changes})


def counted(scenario: Scenario, calls: str, value: int, fails: bool = False) -> dict[str, Any]:
    """Notes the call in a file, which works in any process."""
    with Path(calls).open("a", encoding="utf-8") as file:
        file.write(f"{value}\n")
    if fails:
        raise RuntimeError("broken on purpose")
    return {"square": value * value, "horizon_s": scenario.horizon_s}


def several(scenario: Scenario) -> list[dict[str, Any]]:
    return [
        {"cell": "a", "rif": np.int64(3), "mean": float("nan")},
        {"cell": "b", "rif": np.float64(0.5), "mean": None},
    ]


def a_text(scenario: Scenario) -> str:
    return "text"


def an_array(scenario: Scenario) -> dict[str, Any]:
    return {"series": np.zeros(3)}


def sweep(calls: Path, values: range, fails_at: int | None = None) -> list[Measurement]:
    return [
        Measurement(
            f"{HERE}:counted",
            short(),
            {"calls": str(calls), "value": value, "fails": value == fails_at},
            {"kind": "square"},
        )
        for value in values
    ]


def numbers(calls: Path) -> list[int]:
    return [int(line) for line in calls.read_text(encoding="utf-8").split()]


def test_rows_come_in_the_order_of_the_sweep_with_their_columns(tmp_path: Path) -> None:
    rows = measure(sweep(tmp_path / "calls", range(3)), tmp_path / "kept", "code")
    assert rows == [{"kind": "square", "square": k * k, "horizon_s": 2.0} for k in range(3)]


def test_a_function_may_give_several_rows_and_numpy_numbers(tmp_path: Path) -> None:
    rows = measure([Measurement(f"{HERE}:several", short())], tmp_path, "code")
    assert rows == [
        {"cell": "a", "rif": 3, "mean": None},
        {"cell": "b", "rif": 0.5, "mean": None},
    ]


def test_what_is_made_is_not_made_again_and_a_broken_sweep_goes_on(tmp_path: Path) -> None:
    calls, kept = tmp_path / "calls", tmp_path / "kept"
    with pytest.raises(RuntimeError, match="on purpose"):
        measure(sweep(calls, range(4), fails_at=2), kept, "code")
    assert numbers(calls) == [0, 1, 2]
    finished: list[int] = []
    measure(sweep(calls, range(4)), kept, "code", on_finished=finished.append)
    assert numbers(calls) == [0, 1, 2, 2, 3]
    assert finished == [2, 1, 1]


def test_two_processes_give_the_same_rows(tmp_path: Path) -> None:
    alone = measure(sweep(tmp_path / "a", range(3)), tmp_path / "one", "code")
    together = measure(sweep(tmp_path / "b", range(3)), tmp_path / "two", "code", jobs=2)
    assert together == alone
    assert sorted(numbers(tmp_path / "b")) == [0, 1, 2]


def test_a_measurement_that_occurs_twice_is_made_once(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    rows = measure([*sweep(calls, range(1)), *sweep(calls, range(1))], tmp_path / "kept", "code")
    assert len(rows) == 2
    assert numbers(calls) == [0]


def test_scenario_function_arguments_and_code_decide_the_digest_and_columns_do_not() -> None:
    one = Measurement(f"{HERE}:several", short(), {"a": 1})
    same = Measurement(f"{HERE}:several", short(), {"a": 1}, {"target": 0.5})
    others = [
        Measurement(f"{HERE}:an_array", short(), {"a": 1}),
        Measurement(f"{HERE}:several", short(horizon_s=3.0), {"a": 1}),
        Measurement(f"{HERE}:several", short(), {"a": 2}),
    ]
    assert same.digest("code") == one.digest("code")
    digests = {one.digest("code"), one.digest("other"), *(each.digest("code") for each in others)}
    assert len(digests) == 5


MODULE = '''"""Docs."""
SEEDS = 3
def measured(scenario):
    """What it does."""
    return {"seeds": SEEDS}
def figure(table):
    return 1
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("SEEDS = 3", "SEEDS = 4", False),
        ('{"seeds": SEEDS}', '{"seeds": -SEEDS}', False),
        ("return 1", "return 2", True),
        ("What it does.", "What it really does.", True),
        ("SEEDS = 3", "# Few.\nSEEDS = 3", True),
    ],
)
def test_a_module_change_counts_if_it_can_change_what_is_measured(
    old: str, new: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "__path__", [str(tmp_path)])
    name = "module_that_changes"
    path = tmp_path / f"{name}.py"
    path.write_text(MODULE, encoding="utf-8")
    before = code_of(name)
    assert old in MODULE
    path.write_text(MODULE.replace(old, new), encoding="utf-8")
    assert (code_of(name) == before) is same


def test_a_version_or_a_line_of_the_package_changes_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = code_of("utilisation")
    with monkeypatch.context() as patch:
        patch.setattr("experiments.runner.discovery.package_version", lambda: "99")
        assert code_of("utilisation") != before
    with monkeypatch.context() as patch:
        patch.setattr("experiments.runner.discovery.source_digest", lambda name: "other")
        assert code_of("utilisation") != before
    assert code_of("utilisation") == before


def test_an_evaluated_policy_has_the_records_of_the_evaluation(tmp_path: Path) -> None:
    measurement = evaluated("random", short(), 2, target=0.5)
    rows = measure([measurement], tmp_path / "kept", "code")
    runs = seeded(Run("baselines.static:WeightedRandom", scenario=short()), 2)
    records = [result.record for result in run_all(runs, tmp_path / "run_all")]
    assert rows == [{"target": 0.5, **record} for record in records]


def test_a_policy_that_is_no_baseline_is_named_by_module() -> None:
    measurement = evaluated("baselines.flow:Flow", short(), 1, keywords={"cost": "rif"})
    assert [row["policy"] for row in measurement.rows()] == ["flow-rif"]


def test_played_calls_after_every_interval_and_keeps_the_log() -> None:
    times_s: list[float] = []
    scenario = short(settle_s=1.0)
    task = played(
        "random", scenario, [4, 9], lambda t: times_s.append(t.simulator.time_s[0]), log=True
    )
    h = scenario.control_interval_s
    assert times_s == pytest.approx([1.0 + h * (k + 1) for k in range(round(3.0 / h))])
    task.drain()
    arrived = task.simulator.request_log(1)["arrival_s"]
    assert task.summary(1)["requests"] == np.count_nonzero((arrived > 2.0) & (arrived <= 4.0))


BAD = [
    (lambda: Measurement("several", short()), "module:attribute"),
    (lambda: Measurement(f"{HERE}:several", short(), {"a": float("nan")}), "finite JSON"),
    (lambda: Measurement(f"{HERE}:several", short(), {}, {"a": WeightedRandom}), "finite JSON"),
    (lambda: evaluated("flow-grad", short(), 1), "nearest valid key: 'flow-gradient'"),
    (lambda: evaluated("random", short(), 0), "seeds = 0 must be 1 to 64"),
    (lambda: evaluated("random", short(), 1, keywords={"cost": "rif"}), "module:attribute"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_a_measurement_that_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("function", "columns", "message"),
    [
        ("nowhere:function", {}, "cannot be imported"),
        (f"{HERE}:absent", {}, "cannot be imported"),
        (f"{HERE}:an_array", {}, "ndarray for 'series'"),
        (f"{HERE}:several", {"rif": 1}, "rename the column"),
        (f"{HERE}:a_text", {}, "return a dict or a list of dicts"),
    ],
)
def test_what_gives_no_rows_is_an_error(
    function: str, columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        measure([Measurement(function, short(), {}, columns)], tmp_path / "kept", "code")


def test_an_unknown_function_or_number_of_processes_leaves_no_folder(tmp_path: Path) -> None:
    good = Measurement(f"{HERE}:several", short())
    with pytest.raises(ValueError, match="cannot be imported"):
        measure([good, Measurement("nowhere:f", short())], tmp_path / "kept", "code")
    with pytest.raises(ValueError, match="jobs = 0"):
        measure([good], tmp_path / "kept", "code", jobs=0)
    assert not (tmp_path / "kept").exists()


def test_a_file_that_holds_no_rows_is_named(tmp_path: Path) -> None:
    measurement = Measurement(f"{HERE}:several", short())
    path = tmp_path / f"{measurement.digest('code')}.json"
    for text in ("[{", "3", "[3]", '[{"a": []}]', '[{"a": NaN}]', "[" * 100_000):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"holds no rows.*delete it"):
            measure([measurement], tmp_path, "code")
