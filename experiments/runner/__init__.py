"""What experiments share: measurements and their store, policies played, drawing."""

from experiments.runner.drawing import line_style, panels, use_log
from experiments.runner.measurement import Measurement
from experiments.runner.playing import evaluated, played, simulated
from experiments.runner.slopes import Slope, power_of
from experiments.runner.variants import by_variant, side_by_side, value, variants

__all__ = [
    "Measurement",
    "Slope",
    "by_variant",
    "evaluated",
    "line_style",
    "panels",
    "played",
    "power_of",
    "side_by_side",
    "simulated",
    "use_log",
    "value",
    "variants",
]
