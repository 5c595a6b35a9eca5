"""The fluid model: the paper's delayed dynamics, differentiable in torch. See docs/fluid.md."""

from dlb_gym.fluid.equilibria import FluidEquilibrium, equilibrium
from dlb_gym.fluid.model import FluidModel
from dlb_gym.fluid.path import FluidPath
from dlb_gym.fluid.routing import Disc, Dynamics, Fixed, Flow
from dlb_gym.fluid.system import FluidSystem

__all__ = [
    "Disc",
    "Dynamics",
    "Fixed",
    "Flow",
    "FluidEquilibrium",
    "FluidModel",
    "FluidPath",
    "FluidSystem",
    "equilibrium",
]
