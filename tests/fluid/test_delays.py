"""What is delayed on the grid: nothing is lost, and it comes when it should."""

from __future__ import annotations

import pytest
import torch

from dlb_gym.fluid import delays
from dlb_gym.fluid.delays import Journeys, Lag, Reports
from tests.fluid.systems import tensor

LONGEST = 5


def lag(*steps: float) -> Lag:
    """Of one row and one cell, a root each."""
    return Lag(tensor(steps).view(1, -1, 1), LONGEST)


def flow(*rates: float) -> torch.Tensor:
    return tensor(rates).view(1, -1, 1)


def empty_journeys() -> Journeys:
    return Journeys(LONGEST, torch.zeros(1, 1, dtype=torch.float64))


def test_a_whole_delay_moves_a_flow_by_whole_steps() -> None:
    journeys, delay = empty_journeys(), lag(2.0)
    arrived = [journeys.send(flow(rate), delay).item() for rate in (1.0, 5.0, 0.0, 0.0, 0.0)]
    assert arrived == [0.0, 0.0, 1.0, 5.0, 0.0]


def test_a_part_of_a_step_splits_what_arrives() -> None:
    """Sent during [0, 1), on the way for 1.25: from 1.25 to 2.25, so 3 quarters in [1, 2)."""
    journeys, delay = empty_journeys(), lag(1.25)
    arrived = [journeys.send(flow(rate), delay).item() for rate in (8.0, 0.0, 0.0, 0.0)]
    assert arrived == [0.0, 6.0, 2.0, 0.0]


def test_flows_of_several_roots_meet_in_a_cell() -> None:
    journeys, delay = empty_journeys(), lag(0.0, 0.5, 3.0)
    arrived = [journeys.send(flow(1.0, 4.0, 16.0), delay).item()]
    arrived += [journeys.send(flow(0.0, 0.0, 0.0), delay).item() for _ in range(4)]
    assert arrived == [1.0 + 2.0, 2.0, 0.0, 16.0, 0.0]


def test_what_arrives_at_once_is_known_before_it_is_sent() -> None:
    journeys, delay = empty_journeys(), lag(0.25, 1.0)
    journeys.send(flow(0.0, 3.0), delay)
    assert journeys.arriving(flow(4.0, 100.0), delay).item() == 3.0 + 0.75 * 4.0
    assert journeys.send(flow(4.0, 100.0), delay).item() == 3.0 + 0.75 * 4.0


def test_nothing_is_lost_on_the_way() -> None:
    journeys, delay = empty_journeys(), lag(0.3, 1.7, 4.0, 2.5)
    rng = torch.Generator().manual_seed(1)
    sent = arrived = 0.0
    for _ in range(30):
        now = torch.rand(1, 4, 1, dtype=torch.float64, generator=rng)
        sent += now.sum().item()
        arrived += journeys.send(now, delay).item()
    assert arrived + journeys.total.item() == pytest.approx(sent, rel=1e-14)


def test_a_flow_that_was_always_sent_arrives_as_it_was_sent() -> None:
    journeys, delay = empty_journeys(), lag(0.3, 1.7, 5.0)
    journeys.fill(flow(1.0, 2.0, 4.0), delay)
    assert journeys.total.item() == pytest.approx(0.3 + 2 * 1.7 + 4 * 5.0)
    for _ in range(8):
        assert journeys.send(flow(1.0, 2.0, 4.0), delay).item() == pytest.approx(7.0, rel=1e-14)


def test_reports_are_seen_late_and_in_between() -> None:
    """Reports 0, 1, 2, ... of steps 0, 1, 2, ...: at step n with delay d one sees n - d."""
    delay = lag(0.0, 2.0, 3.25)
    reports = Reports(LONGEST, torch.zeros(1, 1, 1, dtype=torch.float64))
    for step in range(1, 10):
        value = torch.full((1, 1, 1), float(step), dtype=torch.float64)
        ahead = reports.seen(delay, value)
        reports.add(value)
        seen = reports.seen(delay)
        assert torch.equal(seen, ahead)
        assert seen.flatten().tolist() == [step, max(step - 2.0, 0.0), max(step - 3.25, 0.0)]


def test_a_delay_that_rounding_moved_below_a_whole_number_is_that_number() -> None:
    almost = Lag(tensor([3.0 - 1e-13]).view(1, 1, 1), LONGEST)
    assert almost.whole.item() == 3
    assert almost.part.item() == 0.0


def test_delays_have_gradients() -> None:
    """Reports n and n - 1 differ by 1, so a step more of delay shows 1 less."""
    steps = tensor([1.5]).view(1, 1, 1).requires_grad_()
    reports = Reports(LONGEST, torch.zeros(1, 1, 1, dtype=torch.float64))
    for step in (1.0, 2.0, 3.0):
        reports.add(torch.full((1, 1, 1), step, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(reports.seen(Lag(steps, LONGEST)).sum(), steps)
    assert gradient.item() == -1.0


def test_a_delay_that_rounding_moved_keeps_its_gradient() -> None:
    """0.29 / 0.01 is just below 29, and 0.58 / 0.01 just below 58."""
    delays_s = tensor([0.29, 0.58]).requires_grad_()
    delay = Lag((delays_s / 0.01).view(1, 2, 1), 60)
    assert delay.part.flatten().tolist() == [0.0, 0.0]
    (gradient,) = torch.autograd.grad(delay.part.sum(), delays_s)
    assert gradient.tolist() == pytest.approx([100.0, 100.0])


@pytest.mark.parametrize("ahead", [1, 2, 256])
def test_sliding_on_is_the_same_as_making_anew(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers change in place where no gradient is asked for, on pages that come to an end."""
    monkeypatch.setattr(delays, "AHEAD", ahead)
    delay, rng = lag(0.3, 1.7, 4.0), torch.Generator().manual_seed(2)
    flows = torch.rand(20, 1, 3, 1, dtype=torch.float64, generator=rng)
    found = []
    for followed in (False, True):
        journeys = empty_journeys()
        reports = Reports(LONGEST, torch.zeros(1, 1, 1, dtype=torch.float64))
        kept = []
        for flow_now in flows.clone().requires_grad_(followed):
            arrived = journeys.send(flow_now, delay)
            reports.add(arrived[..., None])
            kept += [arrived.detach(), reports.seen(delay).detach()]
        found.append(torch.cat([each.flatten() for each in kept]))
    assert torch.equal(*found)
    assert found[0].abs().max() > 0.5
