from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import train
from tests.scenarios_by_hand import DATA, needs

ROOT = Path(__file__).resolve().parents[1]
TRACE = DATA / "traces" / "azure_llm_2023_conv.csv"
RTT = DATA / "network" / "gcp_rtt_2019_ms.csv"
SHORT = ("--set", "warmup_s=1.0", "--set", "horizon_s=2.0")


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), *arguments]


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def test_training_compares_the_agent_and_writes_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--steps", "2048", "--name", "tiny", "--policies", "random", "--seeds", "2")
    done = call(tmp_path, *SHORT, *arguments)
    assert done.returncode == 0, done.stderr
    assert "ppo-tiny @ 100 ms" in done.stdout
    assert "random @ 100 ms" in done.stdout
    run = tmp_path / "runs" / "tiny"
    assert {path.name for path in run.iterdir()} == {
        "checkpoints", "config.json", "records.jsonl", "report.html", "results", "tensorboard"
    }  # fmt: skip
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    assert [(record["policy"], record["seed"]) for record in records] == [
        (policy, seed) for policy in ("ppo-tiny", "random") for seed in (1_000_000, 1_000_001)
    ]
    assert "Training" in (run / "report.html").read_text()

    monkeypatch.chdir(tmp_path)
    assert train.main(["evaluate", *SHORT, "--policies", "runs/tiny", "capacity"]) == 0
    assert "tiny @ 100 ms" in capsys.readouterr().out

    assert train.main([*SHORT, *arguments, "--seed", "1"]) == 2
    assert "holds a training with other options" in capsys.readouterr().err

    family = ("--family", "appendix_b", *SHORT)
    assert train.main(["evaluate", *family, "--policies", "runs/tiny"]) == 2
    assert "trained on 6 roots and 6 cells" in capsys.readouterr().err


def test_a_killed_training_goes_on_where_it_was(tmp_path: Path) -> None:
    arguments = (*SHORT, "--name", "killed", "--policies", "random", "--seeds", "1")
    checkpoints = tmp_path / "runs" / "killed" / "checkpoints"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command("--steps", "10000000", "--checkpoint-steps", "2048", *arguments),
        cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 110.0
        while not list(checkpoints.glob("step-*")) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    killed_at = max(int(path.name.removeprefix("step-")) for path in checkpoints.glob("step-*"))
    done = call(tmp_path, "--steps", str(killed_at + 2048), *arguments)
    assert done.returncode == 0, done.stderr
    last = max(checkpoints.glob("step-*"))
    state = json.loads((last / "state.json").read_text())
    assert (state["steps"], state["starts"]) == (killed_at + 2048, 2)


def test_evaluation_takes_a_family_and_a_control_interval(tmp_path: Path) -> None:
    done = call(
        tmp_path, "evaluate", "--family", "appendix_b", "--control-interval", "0.02", *SHORT,
        "--set", 'disturbances=[{kind="burst"}]', "--policies", "random", "flow-gradient",
        "--seeds", "3", "--name", "family",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "flow-gradient @ 20 ms" in done.stdout
    lines = (tmp_path / "runs" / "family" / "records.jsonl").read_text().splitlines()
    assert len({json.loads(line)["scenario_digest"] for line in lines}) == 3


@needs(TRACE)
def test_evaluation_takes_a_real_trace_and_measured_round_trips(tmp_path: Path) -> None:
    done = call(
        tmp_path, "evaluate", *SHORT, "--trace", str(TRACE), "--rtt", str(RTT),
        "--policies", "random", "mnlb", "--seeds", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "mnlb @ 100 ms" in done.stdout


def test_help_is_quick_to_load_and_names_the_options(tmp_path: Path) -> None:
    done = call(tmp_path, "--help")
    assert done.returncode == 0
    for option in ("--scenario", "--family", "--set", "--trace", "--rtt", "--steps", "evaluate"):
        assert option in done.stdout
    code = "import sys, train; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert loaded.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "horizn_s=1.0"), "nearest valid key: 'horizon_s'"),
        (("--set", "horizon_s"), "must be KEY=VALUE"),
        (("--set", "horizon_s=[1"), "is not TOML"),
        (("--scenario", "brust"), "nearest valid key: 'burst'"),
        (("--family", "appendix_c"), "nearest valid key: 'appendix_b'"),
        (("--family", "appendix_b", "--scenario", "burst"), "leave out --scenario"),
        (("--control-interval", "0"), "control_interval_s"),
        (("--trace", "none.csv"), "does not exist"),
        (("--rtt", "none.csv"), "none.csv"),
        (("--seeds", "0"), "--seeds = 0"),
        (("--jobs", "0"), "--jobs = 0"),
        (("--policies", "mnbl"), "nearest valid key: 'mnlb'"),
        (("--policies", "runs/none"), "holds no trained policy"),
        (("--policies", "no_module:X"), "cannot be imported"),
        (("--name", "../out"), "must consist of letters"),
    ],
)
def test_bad_input_is_one_message_and_status_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.main(["evaluate", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert not list(tmp_path.rglob("*.html"))


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(SystemExit) as stopped:
        train.main(["evaluate", "--polices", "random"])
    assert stopped.value.code == 2


def test_nothing_imports_the_command_line() -> None:
    for package in ("dlb_gym", "baselines", "agents", "benchmarks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom):
                    names = [str(node.module)]
                assert "train" not in {name.partition(".")[0] for name in names}, path
