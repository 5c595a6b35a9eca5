"""`python -m benchmarks NAME`: speeds as ratios, measured in one run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks import batching, engine, faces, fluid, mechanisms, policies, scale

BENCHMARKS: dict[str, Callable[[], int | None]] = {
    "batching": batching.main,
    "engine": engine.main,
    "faces": faces.main,
    "fluid": fluid.main,
    "mechanisms": mechanisms.main,
    "policies": policies.main,
    "scale": scale.main,
}


def main() -> int:
    """Runs the named benchmark, or all of them; exit status 1 if one misses its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*BENCHMARKS, "all"], default="all")
    name = parser.parse_args().name
    return max(run() or 0 for each, run in BENCHMARKS.items() if name in (each, "all"))


if __name__ == "__main__":
    sys.exit(main())
