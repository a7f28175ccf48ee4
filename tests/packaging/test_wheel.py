"""The wheel's contents, and a base install: the client with only its three dependencies."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.packaging import programs

ROOT = Path(__file__).parents[2]
PACKAGES = ("acker_protocol", "acker_zookeeper", "acker_client", "acker_service", "acker_testing", "acker_command")
# Distributions of a base install: acker, its direct and indirect dependencies, and those of a new virtual environment.
BASE = {"acker", "grpcio", "protobuf", "numpy", "typing_extensions", "pip", "setuptools"}
OUTSIDE = ("numba", "kazoo", "pyspark", "pyarrow", "pandas", "prometheus_client", "grpc_health", "click", "rich")


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        env=inherited | environment,
        timeout=240,
    )


def succeed(*command: object, **environment: str) -> str:
    done = run(*command, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(kind: str, folder: Path) -> Path:
    """Build the "wheel" or "sdist" of this checkout in ``folder`` and return its path."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return next(folder.glob("acker-*"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of a new virtual environment with only the base install."""
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder, with_pip=True)
    constraints = ROOT / "constraints.txt"
    succeed(folder / "bin/python", "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel)
    return folder / "bin"


def test_the_wheel_holds_the_packages_their_types_and_the_contract(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    contract = {"acker.proto", "vectors.json", "acker_pb2.pyi"}
    assert {f"acker_protocol/v1/{name}" for name in contract} <= names
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)


def test_the_sdist_holds_the_contract_and_its_vectors(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path)) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"proto/acker/v1/acker.proto", "proto/acker/v1/vectors.json"} <= names


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    assert not [name for name in names if "__pycache__" in name or "test_" in name]


@pytest.mark.long
def test_a_base_install_brings_three_dependencies(base: Path) -> None:
    script = "import importlib.metadata as m; print(*(d.metadata['Name'] for d in m.distributions()))"
    installed = {name.lower().replace("-", "_") for name in succeed(base / "python", "-c", script).split()}
    assert installed <= BASE


@pytest.mark.long
def test_a_base_install_knows_nothing_of_the_extras(base: Path) -> None:
    script = f"from importlib.util import find_spec; print([name for name in {OUTSIDE!r} if find_spec(name)])"
    assert succeed(base / "python", "-c", script).strip() == "[]"


@pytest.mark.long
def test_importing_the_client_loads_no_grpc(base: Path) -> None:
    script = "import sys, acker_client; print('grpc' in sys.modules)"
    assert succeed(base / "python", "-c", script).strip() == "False"


@pytest.mark.long
def test_a_base_install_tracks_trees_against_a_server(
    base: Path, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    text = programs.only('open_source("sentences")')
    program = tmp_path / "sentences.py"
    program.write_text(text.replace("localhost:7070", start_server().address))
    told = succeed(base / "python", "-W", "error", program).splitlines()
    assert sorted(told) == ["jumps over ACKED", "the lazy dog ACKED", "the quick brown fox ACKED"]


@pytest.mark.long
def test_the_command_names_the_missing_extra_in_one_line(base: Path) -> None:
    done = run(base / "acker", "--help")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "acker[cli]" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_the_server_names_the_missing_extra_in_one_line(base: Path) -> None:
    done = run(base / "python", "-m", "acker_service", "serve")
    assert done.returncode == 2
    assert "acker[service]" in done.stderr
    assert len(done.stderr.splitlines()) == 1
