"""The benchmark of scale: its fleets, what it counts, and its verdict."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import scale
from benchmarks.scale import Fleet, fleet_scenario, request_ns
from dlb_gym.rates import offered_rate_rps
from dlb_gym.scenario import Scenario


def test_a_fleet_has_equal_cells_in_as_many_regions_as_there_are_and_offers_its_load() -> None:
    """By hand: twice as fast cells take twice the requests, three times the load three times."""
    scenario = fleet_scenario(Fleet(21, 3, 2.0))
    assert len(scenario.cells) == len(scenario.roots) == 21
    assert {cell.servers for cell in scenario.cells} == {3}
    assert len({cell.decode_s_per_token for cell in scenario.cells}) == 1
    assert len({cell.region for cell in scenario.cells}) == 20
    rate_rps = offered_rate_rps(scenario)
    for other, times in (
        (Fleet(21, 3, 1.0), 1 / 2),
        (Fleet(21, 3, 2.0, utilisation=2.1), 3),
        (Fleet(7, 3, 2.0), 1 / 3),
    ):
        assert offered_rate_rps(fleet_scenario(other)) == pytest.approx(times * rate_rps)


def test_at_least_so_many_requests_and_steps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poisson: within five standard deviations of rate x whole steps of 0.1 s."""
    scenario = fleet_scenario(Fleet(2, 3, 1.0))
    rate_rps = offered_rate_rps(scenario)
    for requests, steps in ((400, 1), (1, 300)):
        monkeypatch.setattr(scale, "MEASURED_REQUESTS", requests)
        monkeypatch.setattr(scale, "MEASURED_STEPS", steps)
        cost_ns, counted = request_ns(scenario)
        mean = max(requests, rate_rps * 0.1 * steps)
        assert abs(counted - mean) < 5.0 * mean**0.5 + rate_rps * 0.1
        assert 0.0 < cost_ns < 1e9


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Costs of the runs to come, ns; the fleets are two tiny ones, the second of three cells."""
    planned: list[float] = []
    played: Iterator[int] = iter((2, 3, 3, 2, 3, 2, 3, 2))

    def request_ns(scenario: Scenario) -> tuple[float, int]:
        assert len(scenario.cells) == next(played)
        return planned.pop(0), 1_000

    monkeypatch.setattr(scale, "FLEETS", (Fleet(2, 1, 1.0), Fleet(3, 1, 1.0)))
    monkeypatch.setattr(scale, "request_ns", request_ns)
    monkeypatch.setattr("sys.argv", ["benchmarks", "scale"])
    return planned


@pytest.mark.parametrize(
    ("largest_ns", "said", "status"),
    [
        ([700.0, 250.0, 310.0], "3.10 x (2.50 to 7.00); limit 3.00 x: MISSED", 1),
        ([700.0, 250.0, 300.0], "3.00 x (2.50 to 7.00); limit 3.00 x: kept", 0),
        ([100.0, 320.0, 90.0], "1.00 x (0.90 to 3.20); limit 3.00 x: kept", 0),
    ],
)
def test_the_verdict_is_on_the_median_of_the_rounds_and_is_the_exit_status(
    costs: list[float], capsys: pytest.CaptureFixture[str],
    largest_ns: list[float], said: str, status: int,
) -> None:  # fmt: skip
    costs += [50.0, 110.0]  # the table's, which do not count
    for cost_ns in largest_ns:
        costs += [cost_ns, 100.0]
    assert benchmarks.main() == status
    *_, first, last, _, verdict = capsys.readouterr().out.splitlines()
    assert "50 ns,  1.00 x" in first
    assert "110 ns,  2.20 x" in last
    assert verdict.endswith(f"median of 3 rounds that take turns: {said}")
