"""Gradients through the whole model, delays included, against central differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dlb_gym.fluid import Flow, FluidModel, FluidSystem
from dlb_gym.latency_model import LatencyModel
from dlb_gym.service_curves import SoftplusCells
from tests.fluid.systems import hyperbolic, tensor

RATES, TAU = tensor([[7.0, 6.0]]), tensor([[[0.053, 0.218], [0.137, 0.084]]])
LARGEST, HALF, ETA = tensor([[10.0, 12.0]]), tensor([[8.0, 11.0]]), tensor([[0.05, 0.08]])
RIF, ROUTING = tensor([[14.0, 9.0]]), tensor([[[0.6, 0.4], [0.3, 0.7]]])
SOFTPLUS = tensor([[[1.0, 0.1, 8.0, 0.5], [1.2, 0.12, 7.0, 0.8]]])
SERVERS = tensor([[1.0, 1.0]])


def latency_s(interval_s: float | None = None, **given: torch.Tensor) -> torch.Tensor:
    """Mean latency of 0.8 s and where it ends, from the inputs by name."""
    values = {
        "rates": RATES, "tau": TAU, "largest": LARGEST, "half": HALF, "eta": ETA, "rif": RIF,
        "routing": ROUTING, **given,
    }  # fmt: skip
    curves = hyperbolic(LARGEST, HALF)
    curves = type(curves)(values["largest"], values["half"], SERVERS, torch)
    system = FluidSystem.from_arrays(values["rates"], values["tau"], curves)
    flow = Flow("gradient", values["eta"], interval_s)
    path = FluidModel(system, 0.02).run(flow, 0.8, rif=values["rif"], routing=values["routing"])
    return path.latency_s()[0] + path.rif[-1, 0, 1]


def softplus_latency_s(parameters: torch.Tensor, servers: torch.Tensor) -> torch.Tensor:
    curves = SoftplusCells(servers, LatencyModel(*parameters.unbind(dim=-1), xp=torch))
    model = FluidModel(FluidSystem.from_arrays(RATES, TAU, curves), 0.02)
    return model.run(Flow("gradient", ETA), 0.8, rif=RIF, routing=ROUTING).latency_s()[0]


def require_gradient(function: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> None:
    """Every component to 1e-4, relative to the largest."""
    variable = at.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(variable), variable)
    assert gradient.abs().max() > 0.0
    for place in range(at.numel()):
        step = 1e-5 * max(1.0, abs(at.flatten()[place].item()))
        move = torch.zeros(at.numel(), dtype=at.dtype)
        move[place] = step
        up, down = (function(at + sign * move.view_as(at)).item() for sign in (1.0, -1.0))
        expected = (up - down) / (2.0 * step)
        assert gradient.flatten()[place].item() == pytest.approx(
            expected, rel=1e-4, abs=1e-4 * gradient.abs().max().item()
        )


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("eta", ETA), ("rates", RATES), ("tau", TAU), ("largest", LARGEST), ("half", HALF),
        ("rif", RIF), ("routing", ROUTING),
    ],
)  # fmt: skip
@pytest.mark.parametrize("interval_s", [None, 0.04])
def test_gradients_are_those_of_finite_differences(
    name: str, at: torch.Tensor, interval_s: float | None
) -> None:
    require_gradient(lambda value: latency_s(interval_s, **{name: value}), at)


def test_gradients_of_softplus_curves_and_servers() -> None:
    require_gradient(lambda value: softplus_latency_s(value, SERVERS), SOFTPLUS)
    require_gradient(lambda value: softplus_latency_s(SOFTPLUS, value), SERVERS)


def test_single_precision_comes_close() -> None:
    """The same path in float32."""
    doubles = FluidModel(FluidSystem.from_arrays(RATES, TAU, hyperbolic(LARGEST, HALF)))
    singles = FluidModel(
        FluidSystem.from_arrays(
            RATES.float(), TAU.float(), hyperbolic(LARGEST, HALF).mapped(torch.Tensor.float, torch)
        )
    )
    path = doubles.run(Flow("gradient", 0.05), 2.0)
    single = singles.run(Flow("gradient", 0.05), 2.0)
    assert single.rif.dtype == torch.float32
    assert single.rif.numpy() == pytest.approx(path.rif.numpy(), rel=1e-4, abs=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_gives_the_same_path() -> None:
    def moved(values: torch.Tensor) -> torch.Tensor:
        return values.to("cuda")

    system = FluidSystem.from_arrays(RATES, TAU, hyperbolic(LARGEST, HALF))
    there = FluidSystem.from_arrays(
        moved(RATES), moved(TAU), hyperbolic(LARGEST, HALF).mapped(moved, torch)
    )
    flow = Flow("gradient", 0.05)
    expected, path = (FluidModel(each).run(flow, 2.0) for each in (system, there))
    assert path.rif.device.type == "cuda"
    assert path.rif.cpu().numpy() == pytest.approx(expected.rif.numpy(), rel=1e-9)
