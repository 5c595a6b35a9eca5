"""What the fluid model is given: checked before anything moves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dlb_gym.messages import shown
from dlb_gym.scenario import Scenario
from dlb_gym.service_curves import ServiceCurves

Tensor = torch.Tensor
Shape = tuple[int, ...]

FLOATS = (torch.float32, torch.float64)


def scenarios_in(system: object) -> Sequence[Scenario]:
    """One scenario or several as several.

    Raises:
        ValueError: It is neither.
    """
    several: list[Scenario] = []
    for each in system if isinstance(system, list | tuple) else [system]:
        if not isinstance(each, Scenario):
            raise ValueError(
                f"system holds {shown(each)}; give a Scenario (dlb_gym.load_scenario), a list of "
                "them, or a FluidSystem"
            )
        several.append(each)
    if not several:
        raise ValueError("system holds no scenario; give at least one")
    return several


def require_float(dtype: torch.dtype) -> None:
    """Refuses types in which rates and delays would not be what they are.

    Raises:
        ValueError: It is one of them.
    """
    if dtype not in FLOATS:
        raise ValueError(f"dtype = {dtype} must be torch.float32 or torch.float64")


def tensor_like(key: str, value: object, shape: Shape, like: Tensor) -> Tensor:
    """Numbers of a shape as a tensor of `like`'s type and device.

    Raises:
        ValueError: They have another shape, or one is not finite.
    """
    try:
        given = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{key} = {shown(value)} must be numbers: {error}") from None
    if tuple(given.shape) != shape:
        raise ValueError(f"{key} has shape {tuple(given.shape)} and must have {shape}")
    if not bool(torch.isfinite(given).all()):
        raise ValueError(f"{key} must be finite")
    return given


def check_arrays(
    rates_rps: Tensor, one_way_s: Tensor, curves: ServiceCurves, arc_cost: Tensor | None
) -> None:
    """Refuses what is no system (see `FluidSystem.from_arrays`).

    Raises:
        ValueError: Shapes or types disagree, or a number is out of range.
    """
    parameters = parameters_of(curves)
    tensors = {"rates_rps": rates_rps, "one_way_s": one_way_s, **parameters}
    tensors |= {} if arc_cost is None else {"arc_cost": arc_cost}
    for key, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"{key} is of type {type(value).__name__}; give tensors, and curves with xp=torch"
            )
    kinds = {(value.dtype, value.device) for value in tensors.values()}
    if len(kinds) > 1 or rates_rps.dtype not in FLOATS:
        names = sorted({f"{dtype} on {device}" for dtype, device in kinds})
        raise ValueError(
            f"rates_rps, one_way_s and curves are of {names}; give all of them as one of "
            "torch.float32 and torch.float64, on one device"
        )
    _check_shapes(rates_rps, one_way_s, parameters, arc_cost)
    _check_numbers(rates_rps, one_way_s, parameters, arc_cost)


def parameters_of(curves: ServiceCurves) -> dict[str, Tensor]:
    """All parameters of curves, by a name for messages."""
    found: list[Tensor] = []

    def keep(parameter: Tensor) -> Tensor:
        found.append(parameter)
        return parameter

    curves.mapped(keep, curves.xp)
    return {f"parameter {number} of curves": each for number, each in enumerate(found)}


def _check_shapes(
    rates_rps: Tensor, one_way_s: Tensor, parameters: dict[str, Tensor], arc_cost: Tensor | None
) -> None:
    if rates_rps.ndim != 2:
        raise ValueError(
            f"rates_rps has shape {tuple(rates_rps.shape)} and must have (rows, roots): a single "
            "system is a batch of one row"
        )
    rows, roots = rates_rps.shape
    cells = next(iter(parameters.values())).shape[-1]
    wanted: dict[str, tuple[Tensor, Shape]] = {"one_way_s": (one_way_s, (rows, roots, cells))}
    wanted |= {key: (value, (rows, cells)) for key, value in parameters.items()}
    wanted |= {} if arc_cost is None else {"arc_cost": (arc_cost, (rows, roots, cells))}
    for key, (value, shape) in wanted.items():
        if tuple(value.shape) != shape:
            raise ValueError(
                f"{key} has shape {tuple(value.shape)} and must have {shape}: rates_rps gives rows "
                "and roots, curves the cells"
            )


def _check_numbers(
    rates_rps: Tensor, one_way_s: Tensor, parameters: dict[str, Tensor], arc_cost: Tensor | None
) -> None:
    if not bool((torch.isfinite(rates_rps) & (rates_rps >= 0.0)).all()):
        raise ValueError("rates_rps must be finite and at least 0, requests per second")
    for row in torch.nonzero(rates_rps.sum(dim=1) == 0.0)[:1].flatten().tolist():
        raise ValueError(f"row {row} of rates_rps has no arrivals; leave it out")
    if bool((one_way_s < 0.0).any() | torch.isinf(one_way_s).any()):
        raise ValueError("one_way_s must be at least 0 and finite, or NaN where no arc is")
    for key, value in parameters.items():
        if not bool((torch.isfinite(value) & (value >= 0.0)).all()):
            raise ValueError(f"{key} must be finite and at least 0")
    sends = (rates_rps > 0.0) & torch.isnan(one_way_s).all(dim=-1)
    for row, root in torch.nonzero(sends)[:1].tolist():
        raise ValueError(
            f"root {root} of row {row} has arrivals and no arc; give it a finite one_way_s"
        )
    if arc_cost is not None and not bool(torch.isfinite(arc_cost[~one_way_s.isnan()]).all()):
        raise ValueError("arc_cost must be finite on every arc; give what each one costs")
