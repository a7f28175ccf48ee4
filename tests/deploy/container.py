"""Containers without a container engine: the image's commands, and a container of a pod as a process.

A process sees the paths of the image in a mount namespace of its own (``unshare``): the folder where the image's
commands have installed the acker, a read-only root file system, and a folder for each emptyDir. It has the container's
command, environment and user. Where nobody may become that user (without root), it keeps its own.
"""

from __future__ import annotations

import http.client
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.deploy.prometheus import ROOT

HOME = "/opt/acker"
# The folder of the interpreter, as in the image that the Dockerfile begins with.
PYTHON = "/usr/local"
IS_ROOT = os.geteuid() == 0

READ_ONLY = """
grep -v -E '^[^ ]+ /(proc|sys|dev)[ /]' /proc/self/mounts | cut -d' ' -f2 | while read -r each; do
    case " {kept} " in *" $each "*) ;; *) mount -o remount,bind,ro "$each" ;; esac
done
"""


def dockerfile() -> str:
    """Return the Dockerfile, with each instruction on one line."""
    return (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", dockerfile(), re.MULTILINE)


def variables_of_the_image() -> dict[str, str]:
    """Return the variables that the image sets."""
    (words,) = instructions("ENV")
    return dict(word.split("=", 1) for word in words.split())


def build(folder: Path) -> Path:
    """Run the commands of the Dockerfile's first stage, and return the folder that the second one copies."""
    built, source = folder / "built", folder / "src"
    built.mkdir()
    source.mkdir()
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listing, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in files.splitlines():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    command = instructions("RUN")[0]
    script = [*_mounts({HOME: built}), f"cd {shlex.quote(str(source))}", command]
    subprocess.run([*namespace(), "\n".join(["set -e", *script])], env=_environment({}), check=True)
    return built


class Container:
    """A running container of a pod. ``volumes``: the folder of each volume of the pod, by name. ``variables``: those
    that only a cluster knows, such as the pod's address."""

    def __init__(
        self,
        built: Path,
        container: Mapping[str, Any],
        volumes: Mapping[str, Path],
        variables: Mapping[str, str],
        log: Path,
    ) -> None:
        self._ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        self._container, self._log = container, log
        places = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        (entry,) = (re.findall(r'"([^"]+)"', words) for words in instructions("ENTRYPOINT"))
        environment = variables_of_the_image() | environment_of(container, variables)
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        command = [*entry, *container["args"]]
        if IS_ROOT:
            user, group = str(security["runAsUser"]), str(security["runAsGroup"])
            flags = ["--clear-groups", "--no-new-privs", "--bounding-set=-all"]
            command = ["setpriv", f"--reuid={user}", f"--regid={group}", *flags, *command]
        script = [
            *_mounts({HOME: built, **places}),
            READ_ONLY.format(kept=" ".join(places)),
            "touch /root-is-writable 2> /dev/null && exit 99",
            f"exec {shlex.join(command)}",
        ]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*namespace(), "\n".join(["set -e", *script])], env=_environment(environment), stderr=file
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def user(self) -> int:
        """The user that the process runs as."""
        return Path(f"/proc/{self._process.pid}").stat().st_uid

    def answers(self, probe: str) -> bool:
        """Ask as the kubelet does, and return whether the container passes its probe of this name."""
        if self._process.poll() is not None:
            raise AssertionError(f"the container ended with status {self._process.returncode}:\n{self.log}")
        asked = self._container[probe]["httpGet"]
        host, port = "127.0.0.1", self._ports[asked["port"]]
        is_https = asked.get("scheme") == "HTTPS"
        unchecked = ssl._create_unverified_context()
        connection = (
            http.client.HTTPSConnection(host, port, timeout=5, context=unchecked)
            if is_https
            else http.client.HTTPConnection(host, port, timeout=5)
        )
        try:
            connection.request("GET", asked["path"])
            return 200 <= connection.getresponse().status < 400
        except OSError:
            return False
        finally:
            connection.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def environment_of(container: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a container. ``variables``: values of fields of the pod, by the variables' names."""
    found: dict[str, str] = {}
    for each in container["env"]:
        value = variables[each["name"]] if "valueFrom" in each else each["value"]
        # As the kubelet does: only variables that stand before may be used.
        found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
    return found


def namespace(*more: str) -> list[str]:
    """Return a command that runs a script in a mount namespace of its own. ``more``: flags for further namespaces."""
    return ["unshare", "--mount", *more, *([] if IS_ROOT else ["--map-root-user"]), "sh", "-c"]


def _mounts(places: Mapping[str, Path]) -> list[str]:
    """Return the lines of a script that show each folder at its place, and the interpreter at PYTHON."""
    # Comes first, as the interpreter may lie below a place that is hidden afterwards.
    lines = [] if sys.base_prefix in (PYTHON, "/usr") else [_bind(Path(sys.base_prefix), PYTHON)]
    rooms = sorted({str(Path(place).parent) for place in places})
    lines += [f"mount -t tmpfs tmpfs {room}" for room in rooms]
    for place, folder in places.items():
        lines += [f"mkdir {place}", _bind(folder, place)]
    return lines


def _bind(folder: Path, place: str) -> str:
    return f"mount --bind {shlex.quote(str(folder))} {place}"


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    inherited = {
        name: text for name, text in os.environ.items() if not re.match("ACKER_|NUMBA_|PYTHON|VIRTUAL_ENV", name)
    }
    path = f"{PYTHON}/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    # The image's loader knows the interpreter's library.
    inherited["LD_LIBRARY_PATH"] = f"{PYTHON}/lib"
    return inherited | dict(variables) | {"PATH": variables.get("PATH", "$PATH").replace("$PATH", path)}
