"""Where compiled kernels are kept; an install that nobody may write to works, a zipped one says no.

Fault kind 21. Tests may run as root, whom no permission keeps from writing: a file in a
directory's place does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dlb_gym import engine

PACKAGE = Path(engine.__file__).parents[1]

# Compiles the smallest kernel that is cached on disk, and says what was warned of and where it is.
COMPILE = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import dlb_gym.engine
import numpy as np
from dlb_gym.actions import to_routing
print(dlb_gym.__file__)
print(*[str(each.message) for each in caught], sep="|")
print(to_routing(np.zeros((1, 1, 2)), "logits", np.ones((1, 1, 2), bool)).tolist())
"""
# The kernels as plain Python, since compiling them all takes minutes; see tests/parity for both.
EPISODE = """
import warnings
warnings.filterwarnings("ignore", "dlb_gym found no writable place")
from dlb_gym import calibration
calibration.SERVERS, calibration.WINDOWS, calibration.WINDOW = 3, 3, 8.0
from dlb_gym import DLBEnv
env = DLBEnv(changes={"horizon_s": 0.2, "warmup_s": 0.2})
env.reset(seed=0)
action = env.action_space.sample()
print([env.step(action)[3] for _ in range(2)])
"""


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package in which no kernel can be kept."""
    folder = tmp_path_factory.mktemp("site-packages")
    shutil.copytree(PACKAGE, folder / "dlb_gym", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "dlb_gym" / "engine" / "__pycache__").write_text("a file")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return folder


def run(
    code: str, package: Path, scratch: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A fresh process that finds the package there and no home."""
    scratch.mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    there = {"PYTHONPATH": str(package), "HOME": "/dev/null/nobody", "TMPDIR": str(scratch)}
    command = [sys.executable, "-W", "error", "-B", "-c", code]
    return subprocess.run(
        command, cwd=scratch, env=kept | there | variables, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def elsewhere(code: str, package: Path, scratch: Path, **variables: str) -> list[str]:
    """The lines that such a process prints."""
    done = run(code, package, scratch, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_kernels_compile_where_neither_the_package_nor_a_home_can_be_written_to(
    read_only: Path, tmp_path: Path
) -> None:
    module, warned, routing = elsewhere(COMPILE, read_only, tmp_path / "tmp")
    assert module == str(read_only / "dlb_gym" / "__init__.py")
    assert warned.startswith("dlb_gym found no writable place for its compiled kernels")
    assert "set NUMBA_CACHE_DIR to a writable directory" in warned
    assert "|" not in warned
    assert routing == "[[[0.5, 0.5]]]"


def test_an_episode_plays_where_neither_the_package_nor_a_home_can_be_written_to(
    read_only: Path, tmp_path: Path
) -> None:
    assert elsewhere(EPISODE, read_only, tmp_path / "tmp", NUMBA_DISABLE_JIT="1") == [
        "[False, True]"
    ]


def test_a_zipped_install_is_refused_by_name(tmp_path: Path) -> None:
    """As Python imports a wheel that stands on its path: the scenarios would be missing as well."""
    wheel = tmp_path / "dlb_gym-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in PACKAGE.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(PACKAGE.parent))
    done = run("import dlb_gym.scenario_source", wheel, tmp_path / "tmp")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: dlb_gym is imported from an archive ({wheel / 'dlb_gym'}), in which numba "
        "finds no sources to compile; install it as files"
    )
    # Of the archive, not for want of a package: the file is one that Python imports from.
    assert f'File "{wheel / "dlb_gym" / "__init__.py"}"' in done.stderr


def places(
    monkeypatch: pytest.MonkeyPatch, package: Path, **variables: Path | str
) -> tuple[Path, str]:
    """The cache directory of a package with these variables set, and its name."""
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(engine, "_HERE", package / "dlb_gym" / "engine")
    return Path(engine._cache_dir()), f"dlb_gym_{engine._source_hash()}"


def test_the_first_writable_place_is_taken(
    monkeypatch: pytest.MonkeyPatch, read_only: Path, tmp_path: Path
) -> None:
    """NUMBA_CACHE_DIR, then beside the code, then the user's cache directory; nothing is warned."""
    home, chosen = tmp_path / "home", tmp_path / "chosen"
    found, name = places(monkeypatch, read_only, HOME=home)
    assert found == home / ".cache" / name
    found, name = places(monkeypatch, read_only, HOME=home, NUMBA_CACHE_DIR=chosen)
    assert found == chosen / name
    found, name = places(monkeypatch, read_only, HOME=home, NUMBA_CACHE_DIR="/dev/null/none")
    assert found == home / ".cache" / name
    code = tmp_path / "dlb_gym" / "engine"
    code.mkdir(parents=True)
    (code / "one.py").write_text("")
    found, name = places(monkeypatch, tmp_path, HOME=home)
    assert found == code / "__pycache__" / name


def test_kernels_of_edited_sources_are_kept_apart_and_old_ones_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = tmp_path / "dlb_gym" / "engine"
    code.mkdir(parents=True)
    (code / "one.py").write_text("x = 1")
    before, _ = places(monkeypatch, tmp_path)
    assert places(monkeypatch, tmp_path)[0] == before
    (code / "one.py").write_text("x = 2")
    after, _ = places(monkeypatch, tmp_path)
    assert after != before
    assert [each.name for each in (code / "__pycache__").iterdir()] == [after.name]


def test_without_any_place_every_process_gets_a_directory_of_its_own(
    monkeypatch: pytest.MonkeyPatch, read_only: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="found no writable place"):
        one, _ = places(monkeypatch, read_only, HOME="/dev/null/nobody")
    with pytest.warns(RuntimeWarning, match="found no writable place"):
        two, _ = places(monkeypatch, read_only, HOME="/dev/null/nobody")
    assert one != two
    assert one.parent == two.parent == tmp_path
    assert one.stat().st_mode & 0o077 == 0, "nobody else may plant code in it"
