"""Digests of what a load of a model reads: its placed files, files that its configuration names, its
backend's code.

Implements `models/ports.ModelReading` over the tree that `managed_repository` has placed. Files are compared
by digest and not by time; a digest is remembered until its file changes. Python code is searched for BLS
calls, which only the server's own `InferenceRequest` can make; calls in installed packages or in an execution
environment are not seen.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b, file_digest
from itertools import chain
from pathlib import Path

from google.protobuf import json_format

from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.algorithms.closure import closure
from control_plane.core.errors import ModelLoadFailed
from control_plane.core.fingerprint import DIGEST_BYTES, ModelContents, digest_of
from control_plane.core.model import ModelOverride
from control_plane.protocols.kserve.messages import model_config_pb2
from control_plane.triton.adapters.model_config import config_file, read_config, steps_of, string_parameters

_PYTHON = "python"
_SOURCE = ".py"
_BYTECODE = "__pycache__"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
"""Placeholder for the model's folder in a parameter's value (python backend, EXECUTION_ENV_PATH)."""

_CALLS = re.compile(rb"""[."'][\s\\]*InferenceRequest|from[\s\\]+triton_python_backend_utils[\s\\]+import""")
"""Uses of the class `InferenceRequest` of the server's module, however it is imported. The bare name is no
evidence, since our backends have a class of that name too.
"""

_CPUINFO = Path("/proc/cpuinfo")
_GPUS = Path("/proc/driver/nvidia/gpus")

_SETTLED_NS = 2_000_000_000
"""Age of a file's times from which its digest is remembered. File systems round times to some milliseconds,
so two changes in quick succession may leave the same times.
"""

_MAX_REMEMBERED = 100_000

Named = tuple[str, Path]
"""File to digest, with a name that is the same on every machine."""
Part = tuple[str, bytes]
"""Name of a file as in `Named`, with the digest of the file."""


class ModelFiles:
    """Digester of the models placed under `root`. Its methods read files, so call them in threads."""

    def __init__(
        self,
        root: Path,
        *,
        config_name: str,
        python_backends: Path,
        surroundings: Callable[[], Iterable[bytes]] | None = None,
        image: str = "",
    ) -> None:
        """`surroundings` yields what else the responses of stubs depend on; by default the installed packages
        and the hardware. `image` names what Triton runs in, where it is not what this process runs in.
        """
        self._image = image.encode(errors="surrogateescape")
        self._root = root
        self._surroundings = surroundings or _surroundings
        self._config_name = config_name
        self._python_backends = python_backends
        self._digests = FileDigests()
        self._newest_ns: dict[str, int] = {}
        """Latest time of each model's files so far. Triton compares with that of its last load, which may lie
        in the future.
        """

    def ensemble_closure(self, name: str, override: ModelOverride | None) -> list[str]:
        """Return the models that a load reads, as `models/ports.ModelReading.ensemble_closure` says."""
        return closure(name, lambda each: steps_of(self._config(each, override if each == name else None)))

    def read(self, name: str, override: ModelOverride | None) -> ModelContents:
        """Digest what a load would read, as `models/ports.ModelReading.read` says."""
        config = self._config(name, override)
        brought = dict(override.files) if override is not None else {}
        try:
            parts = [(f"brought {key}", blake2b(content, digest_size=DIGEST_BYTES).digest()) for key, content in brought.items()]
            placed, named = [] if brought else self._placed(name), list(self._named_by(name, config))
            parts += [*self._digests.of_files([*placed, *named]), *self._code(config)]
            sources = (path for _, path in (*placed, *named, *self._shared()))
            calls_others = self._is_served_by_stub(config) and _call_others(brought, sources)
        except OSError as exc:
            raise ModelLoadFailed(f"what model {name!r} consists of cannot be read: {exc}") from exc
        digest = digest_of(piece for path, content in sorted(parts) for piece in (path.encode(errors="surrogateescape"), content))
        return ModelContents(digest, frozenset(string_parameters(config)), frozenset(steps_of(config)), bool(brought), calls_others)

    def mark_changed(self, name: str) -> None:
        """Move the times of the version folders forward, as `models/ports.ModelReading.mark_changed`
        says.
        """
        try:
            self._note_times(name)
            # Later than any time so far, for Triton compares only with the time it saw at its last load.
            later_ns = self._newest_ns[name] = max(time.time_ns(), self._newest_ns[name] + 1)
            for version in self._versions(name):
                os.utime(version, ns=(later_ns, later_ns))
        except OSError as exc:
            raise ModelLoadFailed(f"{self._root / name} cannot be written: {exc}") from exc

    def _config(self, name: str, override: ModelOverride | None) -> model_config_pb2.ModelConfig:
        if override is None or override.config is None:
            return read_config(config_file(self._root / name, self._config_name))
        try:
            return json_format.Parse(override.config, model_config_pb2.ModelConfig(), ignore_unknown_fields=True)
        except json_format.ParseError as exc:
            raise ModelLoadFailed(f"the configuration given for {name!r} cannot be read: {exc}") from exc

    def _versions(self, name: str) -> list[Path]:
        model = self._root / name
        return [entry for entry in model.iterdir() if entry.name.isdecimal() and entry.is_dir()] if model.is_dir() else []

    def _note_times(self, name: str) -> None:
        self._newest_ns[name] = max(self._newest_ns.get(name, 0), *map(_newest_ns, _walk(self._root / name)))

    def _placed(self, name: str) -> list[Named]:
        model = self._root / name
        self._note_times(name)
        return [(str(path.relative_to(model)), path) for path in _walk(model)]

    def _named_by(self, name: str, config: model_config_pb2.ModelConfig) -> Iterator[Named]:
        """Yield files outside the model's folder that its parameters name, by absolute paths or relative to a
        version's folder.
        """
        model = self._root / name
        for version in self._versions(name) or [model / "1"]:
            for value in string_parameters(config):
                path = version / value.replace(_MODEL_DIRECTORY, str(model))
                if not _exists(path) or Path(os.path.normpath(path)).is_relative_to(model):
                    continue
                if path.is_dir():
                    raise ModelLoadFailed(f"a parameter of {name!r} names the folder {value!r}, of which nobody knows what is used")
                yield f"named {version.name} {value}", path

    def _is_served_by_stub(self, config: model_config_pb2.ModelConfig) -> bool:
        return not steps_of(config) and (config.backend in ("", _PYTHON) or (self._python_backends / config.backend).is_dir())

    def _code(self, config: model_config_pb2.ModelConfig) -> Iterator[Part]:
        """Yield the digests of code that a model in a stub depends on: our packages, the installed ones, and
        the hardware.
        """
        if self._image:
            yield "image", self._image
        if self._is_served_by_stub(config):
            yield from self._digests.of_files(self._shared())
            yield "surroundings", digest_of(self._surroundings())

    def _shared(self) -> Iterator[Named]:
        root = self._python_backends
        files = ((path.relative_to(root), path) for path in (_walk(root) if root.is_dir() else ()))
        return ((f"code {inside}", path) for inside, path in files if _BYTECODE not in inside.parts)


class FileDigests:
    """Cache of files' digests by identity (inode, size and times): a file that has not changed is
    read once.
    """

    def __init__(self, *, settled_ns: int = _SETTLED_NS, most: int = _MAX_REMEMBERED) -> None:
        self._settled_ns = settled_ns
        self._known = BoundedCache[tuple[int, ...], bytes].of_entries(most)

    def of_files(self, files: Iterable[Named]) -> Iterator[Part]:
        """Yield the digests of regular files, following links; of a link that leads nowhere an empty digest.
        Raises OSError.
        """
        for name, path in files:
            try:
                if stat.S_ISREG(path.stat().st_mode):
                    yield name, self.of(path)
            except FileNotFoundError:  # a link that leads nowhere
                yield name, b""

    def of(self, path: Path) -> bytes:
        """Return the digest of a file. Raises OSError: it cannot be read, or changes while it is read."""
        with path.open("rb") as file:
            identity = _identity(os.fstat(file.fileno()))
            known = self._known.get(identity)
            if known is not None:
                return known
            digest = file_digest(file, lambda: blake2b(digest_size=DIGEST_BYTES)).digest()
            # Written to while it was read: the digest may be of neither content.
            if _identity(os.fstat(file.fileno())) != identity:
                raise OSError(f"{path} changes while it is read")
        self._remember(identity, digest)
        return digest

    def _remember(self, identity: tuple[int, ...], digest: bytes) -> None:
        if time.time_ns() - max(identity[-2:]) < self._settled_ns:
            return
        self._known.keep(identity, digest)


def _call_others(brought: Mapping[str, bytes], paths: Iterable[Path]) -> bool:
    """Whether Python code among these files may make BLS calls, that is, call other models."""
    sources = chain(
        (content for key, content in brought.items() if key.endswith(_SOURCE)),
        (path.read_bytes() for path in paths if path.suffix == _SOURCE and path.is_file()),
    )
    return any(map(_CALLS.search, sources))


def _identity(state: os.stat_result) -> tuple[int, ...]:
    """Return what identifies a file's content. It includes the inode's ctime, which unlike the mtime no
    program can set.
    """
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _walk(folder: Path) -> Iterator[Path]:
    """Yield `folder` and every file and folder beneath it, in no order; links to folders are not entered."""
    yield folder
    for above, folders, files in os.walk(folder, onerror=_raise):
        yield from (Path(above, name) for name in (*folders, *files))


def _raise(error: OSError) -> None:
    raise error


def _newest_ns(path: Path) -> int:
    """Return a file's time as Triton sees it: the later of mtime and ctime (measured with 24.10, where a
    chmod is a change).
    """
    try:
        state = path.stat()
    except FileNotFoundError:
        return 0
    return max(state.st_mtime_ns, state.st_ctime_ns)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # the value cannot be a path: too long, or with a NUL
        return False


def _surroundings() -> Iterator[bytes]:
    yield from sorted(_installed())
    yield from sorted(_machine())


def _installed() -> Iterator[bytes]:
    """Yield the installed distributions with their versions, by the names of their metadata folders."""
    for folder in dict.fromkeys(sys.path):
        if folder and Path(folder).is_dir():
            yield from (os.fsencode(name) for name in os.listdir(folder) if name.endswith(".dist-info"))


def _machine() -> Iterator[bytes]:
    """Yield what arithmetic depends on: on other hardware the same weights give slightly different responses,
    and the variant `auto` may choose other weights.
    """
    yield from {line for line in _CPUINFO.read_bytes().splitlines() if line.startswith((b"model name", b"flags", b"Features", b"CPU part"))}
    for gpu in sorted(_GPUS.glob("*/information")):
        yield from (line for line in gpu.read_bytes().splitlines() if line.startswith(b"Model"))
