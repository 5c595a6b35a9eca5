"""What experiments share: measurements and their store, policies played, drawing."""

from experiments.runner.drawing import line_style, panels
from experiments.runner.measurement import Measurement
from experiments.runner.playing import evaluated, played

__all__ = ["Measurement", "evaluated", "line_style", "panels", "played"]
