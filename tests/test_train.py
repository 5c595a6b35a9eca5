from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import train
from agents.training import Training
from agents.training import train as train_agent
from baselines import registry
from dlb_gym.scenario_source import load_scenario, override
from tests.full_disk import room_for
from tests.scenarios_by_hand import DATA, needs, two_cells

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
    (run / "config.json").write_bytes(b"\xff")
    assert train.main([*SHORT, *arguments]) == 2
    assert "holds a training with other options" in capsys.readouterr().err

    family = ("--family", "appendix_b", *SHORT, "--settle", "0", "--seeds", "1")
    assert train.main(["evaluate", *family, "--policies", "runs/tiny"]) == 0
    assert "tiny @ 100 ms" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("latencies", "reward = 'latencies' is unknown; choose one of latency, ttft, tail"),
        ("tail(95)", "q must lie between 0 and 1"),
        ("goodput", "must hold one positive number in brackets"),
    ],
)
def test_a_wrong_reward_leaves_nothing(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reward: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.main(["--reward", reward]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_training_with_another_reward_has_a_folder_of_its_own() -> None:
    system = train.System(scenario="hot")
    names = [
        train._default_name(system, {"environment": {"reward": reward}, "seed": 0})
        for reward in ("latency", "ttft", "tail(0.9)")
    ]
    assert names[0] == "hot"
    assert len(set(names)) == 3
    assert all(name.startswith("hot-") for name in names[1:])


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


def test_all_baselines_are_compared_by_one_name_and_systems_played_twice(tmp_path: Path) -> None:
    done = call(
        tmp_path, "evaluate", "--family", "appendix_b", "--control-interval", "0.5", *SHORT,
        "--policies", "all", "--seeds", "4", "--trials", "2", "--settle", "0", "--name", "all",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs" / "all" / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert {record["policy"] for record in records} == set(registry.names())
    assert len({record["scenario_digest"] for record in records}) == 2
    assert "scenario appendix_b: 2 systems, 4 seeds" in done.stdout
    assert "Bounds on the mean: fluid optimum" in done.stdout
    for title in ("deployable", "central", "oracles"):
        assert title in done.stdout


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
        (
            ("--set", "horizon_s"),
            "--set 'horizon_s' must be KEY=VALUE, as in network.mean_rtt_s=0.025",
        ),
        (
            ("--set", "horizon_s=[1"),
            "--set 'horizon_s=[1': the value is not TOML: Unclosed array (at end of document)",
        ),
        (("--scenario", "brust"), "nearest valid key: 'burst'"),
        (("--family", "appendix_c"), "nearest valid key: 'appendix_b'"),
        (("--family", "appendix_b", "--scenario", "burst"), "or the family"),
        (("--control-interval", "0"), "control_interval_s"),
        (("--trace", "none.csv"), "does not exist"),
        (("--rtt", "none.csv"), "none.csv"),
        (("--seeds", "0"), "--seeds 0 must be at least 1"),
        (
            ("--seeds", "10001"),
            "--seeds 10,001 must be at most 10,000; compare in parts, each with a --name and "
            "seeds of its own",
        ),
        (
            ("--set", "horizon_s=" + "1" * 20_000),
            " has 20,010 characters; at most 20,000 are read: write a scenario file",
        ),
        (
            ("--set", "horizon_s=1.0\nwarmup_s=1.0"),
            "--set 'horizon_s=1.0\\nwarmup_s=1.0' holds more than one key; repeat --set for others",
        ),
        (("--jobs", "0"), "--jobs 0 must be at least 1"),
        (("--policies", "mnbl"), "nearest valid key: 'mnlb'"),
        (("--policies", "runs/none"), "holds no learned policy"),
        (("--policies", "no_module:X"), "cannot be imported"),
        (
            ("--name", "../out"),
            "--name '../out' must consist of letters, digits, '.', '_' and '-', start with a "
            "letter or digit and take at most 200 bytes",
        ),
        (("--policies", "random", "random"), "named 'random'"),
        (("--policies", "mnlb", "baselines.mnlb:MNLB"), "named 'mnlb'"),
        (("--scenario", "hot", "--set", 'disturbances=[{kind="burst"}]'), "disturbances.0"),
        (("--settle", "-1"), "--settle -1.0 must be a finite number of seconds, at least 0"),
        (("--settle", "inf"), "--settle inf must be a finite number of seconds, at least 0"),
    ],
)
@pytest.mark.parametrize("command", [("evaluate",), ()])
def test_bad_input_is_one_message_and_status_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.main([*command, *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policies",), "error: --policies is empty; name at least one policy\n"),
        (("--first-seed", "-1"), "error: --first-seed -1 must be at least 0\n"),
    ],
)
def test_an_evaluation_of_nothing_or_of_no_seed_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert train.main(["evaluate", *arguments]) == 2
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("0,5,5", "2,5,5", "1,5,5"), "comes before"),
        (("0,5,5", "1,nan,5"), "must be a whole number"),
        (("0,5,5", "1,5,-1"), "must be a whole number"),
        ((), "no requests"),
    ],
)
@pytest.mark.parametrize("command", [("evaluate",), (), ("evaluate", "--family", "appendix_b")])
def test_a_bad_trace_is_one_message_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    rows: tuple[str, ...],
    message: str,
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["arrival_time,prompt_len,output_len", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    assert train.main([*command, "--trace", "trace.csv"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: trace ")
    assert message in said
    assert list(tmp_path.iterdir()) == [trace]


@pytest.mark.parametrize("command", [("evaluate",), ()])
def test_an_agent_of_other_sizes_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    scenario = two_cells(warmup_s=1.0, horizon_s=1.0).model_dump(mode="json")
    agent = tmp_path / "agent"
    train_agent(
        Training({"scenario": scenario}, "mlp", 8, num_envs=4, copies=1, rollout_steps=2), agent
    )
    monkeypatch.chdir(tmp_path)
    assert train.main([*command, "--policies", "./agent"]) == 2
    assert "trained on 2 roots and 2 cells" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [agent]


def test_an_agent_that_would_share_its_name_is_refused_before_it_is_trained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = two_cells(warmup_s=1.0, horizon_s=1.0).model_dump(mode="json")
    agent = tmp_path / "ppo-new"
    train_agent(
        Training({"scenario": scenario}, "arc", 8, num_envs=4, copies=1, rollout_steps=2), agent
    )
    monkeypatch.chdir(tmp_path)
    assert train.main(["--name", "new", "--policies", "./ppo-new"]) == 2
    assert "named 'ppo-new'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [agent]


def records_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("arguments", "settle_s"),
    [
        ((), 20.0),
        (("--settle", "0"), 0.0),
        (("--settle", "0.25"), 0.3),  # whole control intervals
        (("--settle", "0.25", "--set", "settle_s=0.5"), 0.5),
        (("--settle", "0.25", "--family", "appendix_b"), 0.3),
    ],
)
def test_policies_settle_before_measuring_begins(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    settle_s: float,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--policies", "random", "--seeds", "1", "--name", "settled")
    assert train.main(["evaluate", *SHORT, *options, *arguments]) == 0
    folder = tmp_path / "runs" / "settled"
    (record,) = records_of(folder)
    assert record["settle_s"] == settle_s
    assert f"<dd>{settle_s:g} s under the policy" in (folder / "report.html").read_text()
    if not {"--family", "--set"} & set(arguments):
        expected = override(
            load_scenario("global_six"), {"warmup_s": 1.0, "horizon_s": 2.0, "settle_s": settle_s}
        )
        assert record["scenario_digest"] == expected.digest()


def test_a_scenario_file_of_any_name_has_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my file (2).toml"
    path.write_text('base = "global_six"\nname = "mine"\nwarmup_s = 1.0\nhorizon_s = 2.0\n')
    options = ("--settle", "0", "--policies", "random", "--seeds", "1")
    assert train.main(["evaluate", "--scenario", str(path), *options]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "evaluate-my-file-2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "goes on from the last checkpoint, or from the start"),
        (["evaluate"], "keeps the results that are finished"),
    ],
)
def test_a_stopped_command_says_what_calling_it_again_does(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    def stop(options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", stop)
    monkeypatch.setattr(train, "evaluate", stop)
    assert train.main(arguments) == 130
    assert said in capsys.readouterr().err


def test_the_help_says_what_runs_code_and_what_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        train.main(["evaluate", "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "loading them runs no code" in said
    assert "which is code and is run" in said
    assert "--settle" in said


def test_names_that_act_are_shown_on_the_terminal_and_a_record_stays_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.toml"
    name = r"<b>|\u001b[2J\r\n\u202e"
    path.write_text(
        f'base = "global_six"\nname = "{name}"\nwarmup_s = 1.0\nhorizon_s = 1.0\n'
        f'"cells.0.name" = "{name}"\n'
    )
    options = ("--settle", "0", "--policies", "random", "capacity", "--seeds", "2")
    assert train.main(["evaluate", "--scenario", str(path), *options]) == 0
    said = capsys.readouterr()
    assert all(line.isprintable() for line in said.out.splitlines())
    assert r"scenario <b>|\x1b[2J\r\n\u202e: 2 seeds" in said.out
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(records_of(folder)) == 4
    assert records_of(folder)[0]["scenario"] == "<b>|\x1b[2J\r\n\u202e"


def test_an_error_is_one_line_whatever_it_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = ("--set", "horizon_s=-1.0", "--set", "warmup_s=-1.0")
    assert train.main(["evaluate", *wrong]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "horizon_s" in said
    assert "; " in said
    assert "warmup_s" in said
    assert train.main(["evaluate", "--policies", "runs/\x1b[2J\n"]) == 2
    said = capsys.readouterr().err
    assert said.endswith("\n")
    assert said[:-1].isprintable()


def test_a_full_disk_is_one_message_and_the_same_command_ends_as_if_it_had_not_been_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Room for one more file each time: for 4 results, then for the records and not the report."""
    options = (*SHORT, "--settle", "0", "--policies", "random", "capacity", "--seeds", "2")
    command = ["evaluate", *options, "--name", "run"]
    monkeypatch.chdir(tmp_path)
    assert train.main(command) == 0
    run, whole = tmp_path / "runs" / "run", tmp_path / "whole"
    run.rename(whole)
    for room in (0, 1, 1, 1, 1, 1):
        with room_for(room):
            assert train.main(command) == 2
        assert "error: [Errno 28] No space left on device" in capsys.readouterr().err
        assert not list(run.rglob(".*"))
    assert train.main(command) == 0
    names = sorted(path.relative_to(whole) for path in whole.rglob("*"))
    assert names == sorted(path.relative_to(run) for path in run.rglob("*"))
    for name in names:
        if (whole / name).is_file():
            assert (run / name).read_bytes() == (whole / name).read_bytes()


def test_an_sb3_zip_is_not_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.zip").write_bytes(b"PK")
    assert train.main(["evaluate", "--policies", "./model.zip"]) == 2
    assert "SB3 zip serves only to resume one's own training" in capsys.readouterr().err


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
