"""`python -m benchmarks NAME`: speeds as ratios, measured in one run."""

from __future__ import annotations

import argparse

from benchmarks import batching, engine, faces, mechanisms, scale

BENCHMARKS = {
    "batching": batching.main,
    "engine": engine.main,
    "faces": faces.main,
    "mechanisms": mechanisms.main,
    "scale": scale.main,
}


def main() -> None:
    """Runs the named benchmark, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*BENCHMARKS, "all"], default="all")
    name = parser.parse_args().name
    for each, run in BENCHMARKS.items():
        if name in (each, "all"):
            run()


if __name__ == "__main__":
    main()
