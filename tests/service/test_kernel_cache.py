"""Compiled kernels are read from their package, also on a read-only file system, and never from where others write."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from acker_service.process.compiling import LOCATORS
from tests.conftest import PATHS, ROOT

KERNELS = """
from numba import njit, types

@njit(types.int64(types.int64), cache=True)
def twice(number):
    return 2 * number
"""
# Prints how many functions were compiled.
PROGRAM = """
import sys
from numba.core import event
with event.install_recorder("numba:compile") as compiled:
    import kernels
assert kernels.twice(4) == 8
print(len({each.data["dispatcher"] for _, each in compiled.buffer}))
"""


def read_only(path: Path, *command: str) -> list[str]:
    """Return a command that runs with a read-only ``path``."""
    if os.geteuid():
        for each in (path, *path.rglob("*")):
            each.chmod(each.stat().st_mode & ~0o222)
        return list(command)
    # Root may write whatever the modes are.
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(path), *command]


class Package:
    """A folder with a module of kernels, and a home of its user."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.temporary = (folder / name for name in ("package", "home", "tmp"))
        for each in (self.folder, self.home, self.temporary):
            each.mkdir()
        (self.folder / "kernels.py").write_text(KERNELS)

    def compiled(self, *, is_read_only: bool, **variables: str) -> int:
        """Import the kernels in a new process, and return how many were compiled."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.folder), *PATHS]),
            "NUMBA_CACHE_LOCATOR_CLASSES": LOCATORS,
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            **variables,
        }
        command = [sys.executable, "-c", PROGRAM]
        if is_read_only:
            command = read_only(self.folder, *command)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.long
def test_kernels_beside_their_module_are_used_even_where_nothing_may_be_written(package: Package) -> None:
    assert package.compiled(is_read_only=False, NUMBA_CPU_NAME="generic") == 1
    assert package.compiled(is_read_only=True, NUMBA_CPU_NAME="generic") == 0
    assert files_in(package.home) == []


@pytest.mark.long
def test_kernels_for_another_processor_are_compiled_once_into_the_private_cache_of_the_user(
    package: Package,
) -> None:
    assert package.compiled(is_read_only=False, NUMBA_CPU_NAME="generic") == 1
    assert package.compiled(is_read_only=True) == 1
    assert package.compiled(is_read_only=True) == 0
    cache = package.home / ".cache/acker"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert len(files_in(cache)) == 2


@pytest.mark.long
def test_kernels_are_not_read_from_where_others_may_write(package: Package) -> None:
    (package.home / ".cache").mkdir()
    (package.home / ".cache/acker").mkdir(mode=0o755)
    assert package.compiled(is_read_only=True) == 1
    assert files_in(package.home) == []
    (private,) = package.temporary.iterdir()
    assert private.name == f"acker-kernels-{os.geteuid()}"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert package.compiled(is_read_only=True) == 0


@pytest.mark.long
def test_a_directory_that_the_user_names_wins(package: Package, tmp_path: Path) -> None:
    named = tmp_path / "named"
    assert package.compiled(is_read_only=True, NUMBA_CACHE_DIR=str(named)) == 1
    assert package.compiled(is_read_only=True, NUMBA_CACHE_DIR=str(named)) == 0
    assert files_in(package.home) == []


@pytest.mark.long
def test_a_server_whose_kernels_were_compiled_beforehand_compiles_none_and_writes_nothing(tmp_path: Path) -> None:
    package = tmp_path / "package"
    for source in ("acker_service", "proto/acker_protocol"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / source, package / Path(source).name, ignore=unwanted)
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("ACKER_", "NUMBA_"))}
    environment |= {"PYTHONPATH": str(package), "NUMBA_CPU_NAME": "generic", "HOME": "/nonexistent"}
    # As the image compiles them.
    (compile_kernels,) = re.findall(r'-P -c "(import [^"]+)"', (ROOT / "Dockerfile").read_text())
    subprocess.run([sys.executable, "-P", "-c", compile_kernels], env=environment, check=True)
    serve = [sys.executable, "-P", "-m", "acker_service", "serve", "--port=0", "--http-port=off", "--until-stdin-ends"]
    with subprocess.Popen(
        read_only(package, *serve), env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        assert " ready " in server.stderr.readline()
        server.communicate("")
