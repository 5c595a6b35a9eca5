"""Readers of files, fuzzed by coverage with atheris where it is installed.

libFuzzer changes the bytes of files that lie in a corpus, keeps those that reach new branches, and
ends the process at the first failure; so every reader runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LONGEST = 65_536
MEMORY_MB = 3_000
HANG_S = 300
STARTING_S = 1_200.0
INSTRUMENTED = ["tomllib", "json", "gzip", "dlb_gym", "agents"]
"""Packages, unless something has imported them before: nothing at the top of this module may."""
NAMES = ("scenario", "CSV trace", "JSON trace", "packed trace", "RTT matrix", "policy",
         "policy's tensors")  # fmt: skip


def is_installed() -> bool:
    """Whether there is an atheris."""
    return importlib.util.find_spec("atheris") is not None


class Counts(NamedTuple):
    """What a reader went through.

    Attributes:
        tried: Inputs.
        failures: 0 or 1.
        branches_before: Reached by the valid content that it began with.
        branches: Reached in all.
    """

    tried: int
    failures: int
    branches_before: int
    branches: int


def fuzz(name: str, seconds: float, seed: int, folder: Path) -> Counts:
    """Fuzzes one reader; that no branch was counted is a failure too."""
    stem = folder / f"atheris-{re.sub(r'[^a-z]+', '-', name.lower())}."
    for old in folder.glob(f"{stem.name}*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as corpus:
        for number, content in enumerate(_seeds(name)):
            (Path(corpus) / str(number)).write_bytes(content)
        command = [
            sys.executable, "-m", "tests.fuzz.by_coverage", name, f"-max_total_time={seconds:.0f}",
            f"-seed={seed % 2**32}", f"-timeout={HANG_S}", f"-rss_limit_mb={MEMORY_MB}",
            f"-max_len={LONGEST}", f"-artifact_prefix={stem}", "-print_final_stats=1", corpus,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=os.environ | {"PYTHONHASHSEED": "0"},
        )  # fmt: skip
        try:
            log, _ = process.communicate(timeout=seconds + STARTING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            log, _ = process.communicate()
    counts = counts_of(log, failed=process.returncode != 0)
    if counts.failures:
        Path(f"{stem}failure.log").write_text(log[-20_000:], encoding="utf-8")
    return counts


def counts_of(log: str, failed: bool) -> Counts:
    """What libFuzzer says: a line `#2 INITED cov: 19 ...` and later ones alike."""
    tried = [int(number) for number in re.findall(r"^#(\d+)\t", log, flags=re.MULTILINE)]
    executed = re.search(r"number_of_executed_units: +(\d+)", log)
    branches = [int(number) for number in re.findall(r"\bcov: (\d+)", log)] or [0]
    return Counts(
        tried=int(executed[1]) if executed else max(tried, default=0),
        failures=int(failed or branches[-1] == 0),
        branches_before=branches[0],
        branches=branches[-1],
    )


def _seeds(name: str) -> list[bytes]:
    """Valid content; imported here, as a process that fuzzes must instrument what it imports."""
    import gzip

    from tests.fuzz.documents import SEEDS, toml
    from tests.fuzz.policies import description, weights

    azure = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n" * 1
    azure += b"2023-11-16 18:15:50.9951690,396,109\n"
    mooncake = b'{"timestamp": 0, "input_length": 900, "output_length": 5, "hash_ids": [0, 1]}\n'
    return {
        "scenario": [toml(document).encode() for document in SEEDS],
        "CSV trace": [azure, b"arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\n1,2,2\n"],
        "JSON trace": [mooncake + mooncake.replace(b": 0,", b": 9,")],
        "packed trace": [gzip.compress(azure, mtime=0)],
        "RTT matrix": [b"region,us-east4,europe-west1\nus-east4,0.3,80\neurope-west1,81,0.4\n"],
        "policy": [description()],
        "policy's tensors": [weights()],
    }[name]


def _readers() -> dict[str, tuple[str, Callable[[Path], object], tuple[type[Exception], ...]]]:
    """Ending of the file, what reads it, and how it may refuse to."""
    from agents.saved_policy import LoadError, read_policy
    from dlb_gym.network import NetworkError, load_rtt_csv
    from dlb_gym.scenario_source import ScenarioError, load_endpoints
    from dlb_gym.trace import describe_trace, load_trace
    from dlb_gym.trace_file import TraceError
    from tests.fuzz.policies import put_policy

    def trace(path: Path) -> object:
        hash_ids = "hash_ids" if path.suffix == ".jsonl" else None
        return load_trace(describe_trace(path, hash_ids_column=hash_ids))

    def policy(path: Path) -> object:
        folder = path.parent / "policy"
        content = path.read_bytes()
        described, tensors = (content, None) if path.suffix == ".json" else (None, content)
        put_policy(folder, described, tensors)
        return read_policy(folder)

    return {
        "scenario": (".toml", load_endpoints, (ScenarioError, TraceError, NetworkError)),
        "CSV trace": (".csv", trace, (TraceError,)),
        "JSON trace": (".jsonl", trace, (TraceError,)),
        "packed trace": (".csv.gz", trace, (TraceError,)),
        "RTT matrix": (".csv", load_rtt_csv, (NetworkError,)),
        "policy": (".json", policy, (LoadError,)),
        "policy's tensors": (".safetensors", policy, (LoadError,)),
    }


def main(arguments: list[str]) -> None:
    """Fuzzes one reader until libFuzzer ends the process."""
    import atheris

    name, *flags = arguments
    with atheris.instrument_imports(include=INSTRUMENTED):
        ending, read, errors = _readers()[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"case{ending}"

        def one_input(content: bytes) -> None:
            path.write_bytes(content)
            with suppress(*errors):
                read(path)

        atheris.Setup([sys.argv[0], *flags], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
