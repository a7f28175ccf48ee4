"""Authority: a CA of its own for a test, and the files of certificates that it issues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trustme


class Authority:
    """A CA. Writes each file at once, so that a reader never finds half of one."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._ca = trustme.CA()
        self.path = str(folder / f"{name}.pem")
        replace(folder / f"{name}.pem", self._ca.cert_pem.bytes())

    def issue(self, file: str, *, common_name: str | None = None) -> tuple[str, str]:
        """Write a certificate for this machine and its key. Return their paths; files of before are replaced."""
        self.issuing(file, common_name=common_name)()
        return str(self._folder / f"{file}.crt"), str(self._folder / f"{file}.key")

    def issuing(self, file: str, *, common_name: str | None = None) -> Callable[[], None]:
        """Make a certificate now, and return a function that writes its key and then the certificate."""
        made = self._ca.issue_cert("localhost", "127.0.0.1", common_name=common_name)

        def write() -> None:
            replace(self._folder / f"{file}.key", made.private_key_pem.bytes())
            replace(self._folder / f"{file}.crt", b"".join(each.bytes() for each in made.cert_chain_pems))

        return write


def replace(path: Path, content: bytes) -> None:
    """Replace a file, so that a reader finds the old content or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
