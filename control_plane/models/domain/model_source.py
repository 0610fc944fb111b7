"""Files of a model as a cold store lists them, and as the warm tier holds them; and which listings are safe
to fetch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

_MAX_FILES = 10_000
_LONGEST_PATH = 512
_DEEPEST = 16


@dataclass(frozen=True, slots=True)
class SourceFile:
    """File of a model in a cold store."""

    path: str
    """Path within the model's folder, separated by `/`."""
    size: int
    identity: str
    """Text that changes with the content: an object's etag, or a file's inode and time."""
    md5: str | None = None
    """MD5 according to the object's etag. In some stores an etag is another digest, so a mismatch is doubted
    and not final.
    """
    sha256: str | None = None
    """SHA-256 according to a digest list beside the file; None if there is none."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Listing of a model's files in a cold store; its `version` changes whenever a file does."""

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
        """Return the listing with the SHA-256 digests of digest lists, given by path."""
        return ModelSource(self.name, tuple(replace(file, sha256=digests.get(file.path)) for file in self.files))


@dataclass(frozen=True, slots=True)
class WarmFile:
    """File of a warm copy. As long as the file has this size and time its digest is assumed to hold."""

    path: str
    size: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WarmCopy:
    """Record of a model's copy in the warm tier; `version` is that of the `ModelSource` it was
    fetched from.
    """

    name: str
    version: str
    files: tuple[WarmFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def refusal(files: tuple[SourceFile, ...]) -> str | None:
    """Return why these files cannot be a model's, or None if they can.

    The listing comes from outside: a path must not lead out of the model's folder, nor make two files
    collide.
    """
    if not files:
        return "it holds no files"
    if len(files) > _MAX_FILES:
        return f"it holds more than {_MAX_FILES} files"
    folders = {folder for file in files for folder in _above(file.path)}
    for file in files:
        if reason := _path_refusal(file.path, folders):
            return f"{file.path[:_LONGEST_PATH]!r} {reason}"
    return None


def _path_refusal(path: str, folders: set[str]) -> str | None:
    """Return why a path must not be fetched, or None. Paths come from the store, which is not trusted."""
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
