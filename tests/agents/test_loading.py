"""A learned policy decides as SB3's does, and no file of a stranger runs code or goes unnoticed."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from agents import loading
from agents.checkpoints import CheckpointError, read_model, read_statistics
from agents.loading import LoadError, load, policy_files
from agents.networks import MlpActor
from agents.training import train
from dlb_gym.actions import to_routing
from dlb_gym.episodes import FixedScenarios
from dlb_gym.observation import FIELD_NAMES, Observation
from dlb_gym.policy import TaskSpec
from dlb_gym.task import Task
from tests.agents.trained import SCENARIO, newest, observations, tiny

ROOT = Path(__file__).resolve().parents[2]
SPEC = TaskSpec(2, 2, Observation(2, 2))
STATISTICS = ("observation.mean", "observation.variance")


@pytest.fixture(scope="module")
def arc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train(tiny(steps=32), folder)
    return folder


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny-mlp"
    train(tiny(network="mlp", steps=32), folder)
    return folder


@pytest.fixture
def sent(mlp: Path, tmp_path: Path) -> Path:
    """The two files alone, as one sends them to somebody."""
    folder = tmp_path / "sent"
    folder.mkdir()
    for name in ("policy.json", "policy.safetensors"):
        shutil.copy(newest(mlp) / name, folder)
    return folder


def decided(path: Path, seen: NDArray[np.float32]) -> NDArray[np.float64]:
    policy = load(path)
    policy.reset(SPEC, len(seen), 0)
    routing = policy.act(seen).routing
    assert routing is not None
    return routing


def described(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the description."""
    path = folder / "policy.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def packed(folder: Path, tensors: dict[str, NDArray[Any]] | bytes) -> None:
    """Replaces the tensors, and their digest in the description."""
    data = tensors if isinstance(tensors, bytes) else save_tensors(tensors)
    (folder / "policy.safetensors").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    described(folder, lambda content: content.update(tensors_sha256=digest))


def unpacked(folder: Path) -> dict[str, NDArray[Any]]:
    return load_tensors((folder / "policy.safetensors").read_bytes())


ACT_ELSEWHERE = """
import sys
import numpy as np
from agents.loading import load
from dlb_gym.observation import Observation
from dlb_gym.policy import TaskSpec
seen = np.load("seen.npy")
for path in sys.argv[1:]:
    policy = load(path)
    policy.reset(TaskSpec(2, 2, Observation(2, 2)), len(seen), 0)
    np.save(f"{policy.name}.npy", policy.act(seen).routing)
"""


def elsewhere(code: str, folder: Path, *arguments: Path) -> str:
    """What a new process says."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=folder, capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_process_decides_as_sb3_did_bit_for_bit(arc: Path, mlp: Path, tmp_path: Path) -> None:
    """On 100 observations, 50 as episodes begin and 50 anywhere within the fields' bounds."""
    rng = np.random.default_rng(0)
    seen = np.concatenate([observations(50), rng.uniform(0.0, 2.0, (50, SPEC.observation.size))])
    seen = seen.astype(np.float32)
    seen.reshape(100, 2, 2, -1)[..., FIELD_NAMES.index("admissible")] = 1.0
    np.save(tmp_path / "seen.npy", seen)
    elsewhere(ACT_ELSEWHERE, tmp_path, arc, mlp)
    for run, normalised in ((arc, False), (mlp, True)):
        last = newest(run)
        normal = read_statistics(last).normalize_obs(seen)
        assert isinstance(normal, np.ndarray)
        assert np.array_equal(normal, seen) != normalised
        action, _ = read_model(last).predict(normal, deterministic=True)
        expected = to_routing(action, "logits", np.ones((100, 2, 2), dtype=np.bool_))
        np.testing.assert_array_equal(np.load(tmp_path / f"{run.name}.npy"), expected)
        assert np.ptp(expected) > 0.01


def test_two_files_alone_are_the_policy(mlp: Path, sent: Path) -> None:
    seen = observations(3)
    np.testing.assert_array_equal(decided(sent, seen), decided(mlp, seen))
    assert load(sent).name == "sent"
    assert load(sent, name="theirs").name == "theirs"
    assert policy_files(sent) == (
        str(sent), (str(sent / "policy.json"), str(sent / "policy.safetensors"))
    )  # fmt: skip


def test_a_run_its_newest_checkpoint_and_nothing_older_are_the_same_policy(arc: Path) -> None:
    assert load(arc).name == load(newest(arc)).name == "tiny"
    assert policy_files(arc)[0] == str(newest(arc))


def test_the_description_says_what_it_was_trained_on(mlp: Path) -> None:
    content = json.loads((newest(mlp) / "policy.json").read_text())
    assert content["format"] == 1
    assert content["network"] == {"kind": "mlp", "hidden": [64, 64]}
    assert content["observation"] == {
        "fields": list(FIELD_NAMES), "num_roots": 2, "num_cells": 2
    }  # fmt: skip
    assert content["action"] == {"encoding": "logits", "scale": 8.0}
    assert content["normalisation"] == {"epsilon": 1e-8, "clip": 10.0}
    assert content["trained_on"] == {
        "scenarios": ["two_cells"], "family": None, "reward": "latency", "seed": 0, "steps": 32
    }  # fmt: skip
    assert set(content["versions"]) == {"dlb-gym", "numpy", "stable-baselines3", "torch"}


def test_the_family_is_named(tmp_path: Path) -> None:
    family = {"family": "appendix_b", "changes": {"warmup_s": 0.5, "horizon_s": 0.5}}
    train(tiny(environment=family | {"reward": "ttft"}, steps=32), tmp_path)
    trained_on = load(tmp_path).description.trained_on
    assert (trained_on.family, trained_on.scenarios) == ("appendix_b", ())
    assert trained_on.reward == "ttft"


LOAD_UNDER_GUARD = """
import builtins, os, pickle, sys
import numpy as np
import torch
import agents.loading as loading
from dlb_gym.observation import Observation
from dlb_gym.policy import TaskSpec

def act(path):
    policy = loading.load(path)
    policy.reset(TaskSpec(2, 2, Observation(2, 2)), 1, 0)
    return policy.act(np.zeros((1, Observation(2, 2).size), np.float32))

for path in sys.argv[1:]:
    act(path)  # whatever is imported late is imported now
RUNS = ("pickle.", "marshal.", "exec", "compile", "import", "subprocess.", "os.system", "os.exec",
        "os.posix_spawn", "ctypes.", "code.", "socket.")
seen, watching = [], True

def watch(event, arguments):
    if watching:
        seen.append(event)
        if event.startswith(RUNS):
            os.write(2, f"{event} {arguments}".encode())
            os._exit(3)

def refuse(*arguments, **keywords):
    os.write(2, b"an unpickler was called")
    os._exit(4)

pickle.load = pickle.loads = pickle.Unpickler = torch.load = refuse
for name in ("cloudpickle", "joblib"):
    if name in sys.modules:
        sys.modules[name].load = refuse
sys.addaudithook(watch)
for path in sys.argv[1:]:
    act(path)
watching = False
print(seen.count("open"))
"""


def test_loading_and_acting_run_no_code_of_the_file(arc: Path, mlp: Path, tmp_path: Path) -> None:
    """Python tells an audit hook of every import, compilation, unpickled name and process.

    Two files are opened for each policy.
    """
    assert elsewhere(LOAD_UNDER_GUARD, tmp_path, arc, mlp).strip() == "4"


@pytest.mark.parametrize("network", ["arc", "mlp"])
def test_a_pickle_in_the_folder_is_not_opened(
    request: pytest.FixtureRequest, network: str, tmp_path: Path
) -> None:
    """Evil files in place of SB3's change nothing and are not run."""
    run: Path = request.getfixturevalue(network)
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    witness = tmp_path / "witness"
    evil = f"cposix\nsystem\n(S'touch {witness}'\ntR.".encode()
    for name in ("model.zip", "normalisation.pkl"):
        (newest(folder) / name).write_bytes(evil)
    seen = observations(2)
    np.testing.assert_array_equal(decided(folder, seen), decided(run, seen))
    assert not witness.exists()
    with pytest.raises(ValueError, match="cannot be read"):
        read_statistics(newest(folder))
    assert witness.exists()  # it would have worked


def imported_by(module: str) -> set[str]:
    """Modules of ours that a module imports, however indirectly, and the others by name."""
    found: set[str] = set()
    left = [module]
    while left:
        name = left.pop()
        found.add(name)
        path = ROOT / (name.replace(".", "/") + ".py")
        if not path.is_file():
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            left += [each for each in names if each not in found]
    return found


def test_nothing_on_the_way_imports_a_module_that_unpickles() -> None:
    imported = imported_by("agents.loading")
    assert {"agents.saved_policy", "agents.networks", "dlb_gym.policy", "torch"} <= imported
    tops = {name.partition(".")[0] for name in imported}
    assert not tops & {"pickle", "cloudpickle", "stable_baselines3", "joblib", "shelve", "marshal"}
    for name in ("agents.loading", "agents.saved_policy", "agents.networks"):
        text = (ROOT / (name.replace(".", "/") + ".py")).read_text(encoding="utf-8")
        assert "torch.load" not in text


def test_a_policy_of_the_shared_network_is_local(arc: Path) -> None:
    policy = load(arc)
    assert policy.information == "local"
    seen = observations(2)
    before = decided(arc, seen)
    seen.reshape(2, 2, 2, -1)[:, 1] *= 0.9
    after = decided(arc, seen)
    np.testing.assert_allclose(after[:, 0], before[:, 0], atol=1e-6)
    assert np.abs(after[:, 1] - before[:, 1]).max() > 1e-6


def test_an_mlp_reads_all_rows_and_fits_its_sizes_alone(mlp: Path) -> None:
    policy = load(mlp)
    assert policy.information == "central"
    np.testing.assert_allclose(decided(mlp, observations(3)).sum(axis=-1), 1.0)
    told = (
        "was trained on 2 roots and 2 cells; this task has 5 roots and 5 cells; train on a "
        "scenario of these sizes, or the `arc` network, which fits all"
    )
    with pytest.raises(LoadError, match=told):
        policy.reset(TaskSpec(5, 5, Observation(5, 5)), 1, 0)


def test_the_shared_network_decides_the_same_on_ten_padded_cells(arc: Path) -> None:
    policy = load(arc)
    routings = []
    for max_cells in (2, 10):
        task = Task(FixedScenarios([SCENARIO]), 2, max_cells=max_cells)
        seen = task.reset(seeds=[0, 1])
        policy.reset(task.spec, 2, 0)
        routing = policy.act(seen).routing
        assert routing is not None
        routings.append(routing)
        task.step(policy.act(seen))  # refuses what is no routing matrix
    small, padded = routings
    assert padded.shape == (2, 10, 10)
    np.testing.assert_allclose(padded[:, :2, :2], small, rtol=1e-5)
    assert padded.sum() == pytest.approx(small.sum())


def test_the_shared_network_relabels_its_answer_on_other_sizes(arc: Path) -> None:
    policy = load(arc)
    rng = np.random.default_rng(0)
    cube = rng.uniform(0.0, 1.0, (1, 3, 5, len(FIELD_NAMES))).astype(np.float32)
    cube[..., FIELD_NAMES.index("admissible")] = 1.0
    policy.reset(TaskSpec(3, 5, Observation(3, 5)), 1, 0)
    order = [4, 0, 2, 1, 3]
    routing = policy.act(cube.reshape(1, -1)).routing
    relabelled = policy.act(cube[:, :, order].reshape(1, -1)).routing
    assert routing is not None
    assert relabelled is not None
    np.testing.assert_allclose(relabelled, routing[:, :, order], rtol=1e-4)
    assert np.ptp(routing) > 0.0


def test_a_folder_without_a_policy_is_named(tmp_path: Path) -> None:
    told = (
        r"holds no learned policy: there is neither policy\.json nor a folder checkpoints/step-\*; "
        r"give the folder of a run of train\.py"
    )
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(LoadError, match=told):
            load(path)


def test_what_can_be_no_path_is_named() -> None:
    with pytest.raises(LoadError, match="a learned policy must be the path of a file, text; got"):
        load(None)  # type: ignore[arg-type]
    with pytest.raises(LoadError, match=r"'aaa.*' cannot be read: .*; give the folder of a run of"):
        load("a" * 5_000)


def test_a_training_goes_on_in_its_own_sizes_only(mlp: Path) -> None:
    other = tiny(environment={"scenario": "global_six"}).make_env(0)
    with pytest.raises(CheckpointError, match=r"shape \(\d+,\), and the environment .* train anew"):
        read_statistics(newest(mlp), other)


@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors"])
def test_a_missing_file_is_named(sent: Path, name: str) -> None:
    (sent / name).unlink()
    with pytest.raises(LoadError, match=rf"sent/{name}' is missing"):
        load(sent)


def test_a_checkpoint_of_an_earlier_version_is_not_evaluated(arc: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(arc, tmp_path / "old"))
    for name in ("policy.json", "policy.safetensors"):
        (newest(folder) / name).unlink()
    with pytest.raises(LoadError, match=r"SB3 zip holds a pickle, serves only to resume"):
        load(folder)


def test_an_sb3_zip_is_refused_with_what_it_is_for(arc: Path) -> None:
    with pytest.raises(LoadError, match=r"SB3 zip serves only to resume one's own training"):
        load(newest(arc) / "model.zip")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "has format 2; this version reads format 1 only"),
        ({"format": "1"}, "format: Input should be a valid integer"),
        ({"format": None}, "format"),
        ({"network": {"kind": "cnn"}}, "network: Input tag 'cnn'"),
        ({"network": {"kind": "descent", "width": 0}}, "network.descent.width"),
        ({"network": {"kind": "descent", "width": 8, "gain": 1.0}}, "network.descent.gain"),
        ({"network": {"kind": "mlp", "hidden": []}}, "network.mlp.hidden"),
        ({"network": {"kind": "mlp", "hidden": [0]}}, "network.mlp.hidden.0"),
        ({"network": {"kind": "mlp", "hidden": [64.5, 64]}}, "network.mlp.hidden.0"),
        ({"network": {"kind": "mlp", "hidden": [64] * 9}}, "at most 8 items"),
        ({"network": {"kind": "mlp", "hidden": [64, 64], "load": "x"}}, "network.mlp.load"),
        ({"observation": {"fields": [], "num_roots": 0, "num_cells": 2}}, "observation.num_roots"),
        ({"action": {"encoding": "weights", "scale": 8.0}}, "action.encoding"),
        ({"action": {"encoding": "logits", "scale": 4.0}}, "action.scale = 4.0; this version's"),
        ({"normalisation": {"epsilon": 0.0, "clip": 10.0}}, "normalisation.epsilon"),
        ({"normalisation": {"epsilon": 1e-8, "clip": float("inf")}}, "normalisation.clip"),
        ({"normalisation": {"epsilon": 1e-8}}, "normalisation.clip: Field required"),
        ({"versions": {"torch": 2}}, "versions.torch"),
        ({"tensors_sha256": "0" * 63}, "tensors_sha256"),
        ({"code": "print()"}, "code: Extra inputs are not permitted"),
    ],
)
def test_a_description_that_is_not_the_schema_is_refused(
    sent: Path, change: dict[str, Any], message: str
) -> None:
    described(sent, lambda content: content.update(change))
    with pytest.raises(LoadError) as raised:
        load(sent)
    assert "sent/policy.json" in str(raised.value)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format": 1}',
        b'{"format": 1' + b"0" * 5000 + b"}", b'{"format": NaN}', b'{"format": true}',
    ],
    ids=range(10),
)  # fmt: skip
def test_what_is_no_description_at_all_is_refused(sent: Path, text: bytes) -> None:
    (sent / "policy.json").write_bytes(text)
    with pytest.raises(
        LoadError, match=r"policy\.json' describes no learned policy: .+; copy it a"
    ):
        load(sent)


def test_a_message_stays_one_line_whatever_the_file_holds(sent: Path) -> None:
    described(sent, lambda content: content.update({"\x1b[2J\n" * 1000: 1}))
    with pytest.raises(LoadError) as raised:
        load(sent)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 600


def test_other_observation_fields_are_refused(sent: Path) -> None:
    def swap(content: dict[str, Any]) -> None:
        fields = content["observation"]["fields"]
        fields[0], fields[1] = fields[1], fields[0]

    def rename(content: dict[str, Any]) -> None:
        content["observation"]["fields"][3] = "queue"

    described(sent, swap)
    with pytest.raises(
        LoadError, match=r"observation\.fields are not this version's \(in another ord"
    ):
        load(sent)
    described(sent, rename)
    with pytest.raises(
        LoadError, match=r"version's \(missing or unknown: \['queue', 'rif'\]\); use"
    ):
        load(sent)


@pytest.mark.parametrize("name", [*STATISTICS, "hidden.0.weight", "action.bias"])
def test_a_missing_tensor_is_named_the_statistics_too(sent: Path, name: str) -> None:
    packed(sent, {key: value for key, value in unpacked(sent).items() if key != name})
    told = (
        rf"lacks the tensor '{name}', by the network and the normalisation that policy\.json names"
    )
    with pytest.raises(LoadError, match=told):
        load(sent)


def test_statistics_that_the_description_does_not_know_are_refused(sent: Path) -> None:
    """Leaving out the normalisation must not give a policy that acts on raw observations."""
    described(sent, lambda content: content.update(normalisation=None))
    with pytest.raises(LoadError, match=r"has the unknown tensor 'observation\.mean'"):
        load(sent)
    described(sent, lambda content: content.pop("normalisation"))
    with pytest.raises(LoadError, match="normalisation: Field required"):
        load(sent)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("extra", lambda a: np.zeros(1, np.float32), "has the unknown tensor 'extra'"),
        (
            "hidden.0.bias",
            lambda a: a[:-1],
            r"has shape \(63,\) and type F32; by policy\.json it must have shape \(64,\)",
        ),
        ("hidden.0.bias", lambda a: a[None], r"has shape \(1, 64\)"),
        ("hidden.0.weight", lambda a: a.T.copy(), r"has shape \(108, 64\)"),
        ("hidden.0.bias", lambda a: a.astype(np.float64), "type F64.*type float32"),
        ("hidden.0.bias", lambda a: a.astype(np.int32), "type I32.*type float32"),
        ("observation.mean", lambda a: a.astype(np.float32), "type F32.*type float64"),
        ("hidden.0.bias", lambda a: np.full_like(a, np.nan), "holds NaN or infinity"),
        ("hidden.0.weight", lambda a: np.full_like(a, np.inf), "holds NaN or infinity"),
        ("observation.mean", lambda a: np.full_like(a, -np.inf), "holds NaN or infinity"),
        ("observation.variance", lambda a: a - 1e9, "holds a negative number"),
    ],
)
def test_a_wrong_tensor_is_named(
    sent: Path, name: str, change: Callable[[Any], Any], message: str
) -> None:
    tensors = unpacked(sent)
    tensors[name] = change(tensors.get(name))
    packed(sent, tensors)
    with pytest.raises(LoadError, match=rf"policy\.safetensors.*{message}"):
        load(sent)


def test_weights_that_are_finite_and_too_large_are_named_when_they_act(sent: Path) -> None:
    tensors = unpacked(sent)
    tensors["action.weight"][:] = 3e38
    packed(sent, tensors)
    with pytest.raises(LoadError, match="'sent' gave an action that is NaN or infinite"):
        decided(sent, observations(1))


def test_statistics_at_the_edge_of_the_numbers_are_clipped(sent: Path) -> None:
    tensors = unpacked(sent)
    tensors["observation.mean"][:], tensors["observation.variance"][:] = -1.7e308, 0.0
    packed(sent, tensors)
    np.testing.assert_allclose(decided(sent, observations(1)).sum(axis=-1), 1.0)


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 7, b"\xff" * 64, b"\x02" + b"\x00" * 7 + b"[]", b"PK\x03\x04" * 20]
)
def test_what_is_no_safetensors_file_is_refused(sent: Path, data: bytes) -> None:
    packed(sent, data)
    with pytest.raises(
        LoadError, match=r"policy\.safetensors' is no safetensors file \(.+\); copy it"
    ):
        load(sent)


def test_a_bit_that_turned_is_noticed(sent: Path) -> None:
    path = sent / "policy.safetensors"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(LoadError, match=r"does not belong to policy\.json beside it, or is damage"):
        load(sent)


def test_files_of_two_trainings_do_not_go_together(sent: Path, tmp_path: Path) -> None:
    train(tiny(network="mlp", steps=32, seed=1), tmp_path / "other")
    shutil.copy(newest(tmp_path / "other") / "policy.safetensors", sent)
    with pytest.raises(LoadError, match=r"does not belong to policy\.json"):
        load(sent)


def test_a_file_larger_than_its_architecture_is_not_read(sent: Path) -> None:
    """A sparse file of 1 TiB: reading it would end the process."""
    with (sent / "policy.safetensors").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(LoadError, match=r"is too large: the tensors of the network .* at most"):
        load(sent)
    with (sent / "policy.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(LoadError, match=r"policy\.json' is too large: a description has at most"):
        load(sent)


def test_an_architecture_larger_than_the_memory_is_not_made(sent: Path) -> None:
    def grow(content: dict[str, Any]) -> None:
        content["network"]["hidden"] = [4096] * 8
        content["observation"] |= {"num_roots": 100_000, "num_cells": 100_000}

    described(sent, grow)
    with pytest.raises(LoadError, match=r"names a network of [\d,]+ bytes; at most 1,073,741,824"):
        load(sent)


def test_a_file_that_cannot_be_read_is_named(sent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(
        LoadError, match=r"policy\.json' cannot be read \(.*denied\); copy it again"
    ):
        load(sent)


def test_a_policy_acts_on_one_thread_and_leaves_the_process_the_number_that_it_had(
    mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three: neither one nor what this machine would be given by itself."""
    at_work: list[int] = []
    forward = MlpActor.forward_actor

    def noted(actor: MlpActor, features: torch.Tensor) -> torch.Tensor:
        at_work.append(torch.get_num_threads())
        return forward(actor, features)

    monkeypatch.setattr(MlpActor, "forward_actor", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        decided(mlp, observations(2))
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    assert (at_work, after) == ([1], 3)


def test_the_loader_is_reachable_by_the_name_of_a_run() -> None:
    assert loading.load is load
    assert issubclass(LoadError, ValueError)
