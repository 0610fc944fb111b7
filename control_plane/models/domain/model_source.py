"""A model's files as a cold source lists them, and as the warm tier holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

_MOST_FILES = 10_000
_LONGEST_PATH = 512
_DEEPEST = 16


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a model in a source."""

    path: str
    """Within the model's folder, with `/` between."""
    size: int
    identity: str
    """Changes with the content: an object's etag, or a file's inode and time."""
    md5: str | None = None
    """As an object's etag says, which is another digest in some stores: what differs from it is doubted, not refused for ever."""
    sha256: str | None = None
    """As a list beside it says; None: worked out while it is fetched."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model in a source, by path; `version` is another one whenever a file is."""

    name: str
    files: tuple[SourceFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def version(self) -> str:
        lines = (f"{file.path}\0{file.size}\0{file.identity}\n" for file in self.files)
        return sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()

    def with_digests(self, digests: Mapping[str, str]) -> ModelSource:
        """The same with what lists of digests say, by path."""
        return ModelSource(self.name, tuple(replace(file, sha256=digests.get(file.path)) for file in self.files))


@dataclass(frozen=True, slots=True)
class WarmFile:
    """One file of a warm copy: as long as size and time are these, the digest is taken to hold."""

    path: str
    size: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WarmCopy:
    """What the warm tier holds of a model: which `ModelSource.version` it was fetched of."""

    name: str
    version: str
    files: tuple[WarmFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def refusal(files: tuple[SourceFile, ...]) -> str | None:
    """Why these cannot be a model's; None when they can."""
    if not files:
        return "it holds no files"
    if len(files) > _MOST_FILES:
        return f"it holds more than {_MOST_FILES} files"
    folders = {folder for file in files for folder in _above(file.path)}
    for file in files:
        if reason := _path_refusal(file.path, folders):
            return f"{file.path[:_LONGEST_PATH]!r} {reason}"
    return None


def _path_refusal(path: str, folders: set[str]) -> str | None:
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in path:
        return "leads out of the model's folder, or nowhere"
    if not path.isprintable():
        return "has characters that cannot be shown"
    if len(path) > _LONGEST_PATH or len(parts) > _DEEPEST or any(len(part.encode()) > 255 for part in parts):
        return "is too long or too deep"
    return "is a file and a folder" if path in folders else None


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
