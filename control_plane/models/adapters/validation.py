"""Validation of a model's folder without a Triton: all that is wrong with it, by file and line, each with what is right.

`adapters/checks` refuses a load at the first thing that would fail for certain; this goes on, and also looks at what only the
model's author can mend: its Python code, and the wiring of an ensemble. Called by `tidegate models validate`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from control_plane.core.errors import ModelLoadFailed
from control_plane.core.model import MODEL_NAME, NAME_RULE
from control_plane.models.adapters.checks import require_loadable
from control_plane.protocols.kserve.messages import model_config_pb2
from control_plane.triton.adapters.model_config import config_file, read_config

_PYTHON_CLASS = "TritonPythonModel"
_WHERE = re.compile(r"(?P<file>.+?):(?P<line>[0-9]+):[0-9]+ : (?P<text>.*)", re.DOTALL)
"""An error of protobuf's text format behind the file's name."""

Tensors = Sequence["model_config_pb2.ModelInput | model_config_pb2.ModelOutput"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a model."""

    file: Path
    line: int
    """From 1 on; 0 where it is about the file as a whole."""
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


def models_in(folder: Path) -> list[Path]:
    """Return the folders of the models in a repository, or the folder itself if it is a model's. Raises ModelLoadFailed."""
    try:
        entries = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as exc:
        raise ModelLoadFailed(f"{folder} cannot be read: {exc.strerror}") from exc
    if (folder / "config.pbtxt").exists() or any(entry.name.isdecimal() for entry in entries):
        return [folder]
    return [entry for entry in entries if (entry / "config.pbtxt").exists() or any(child.name.isdecimal() for child in entry.iterdir())]


def validate_model(folder: Path, config_name: str, *, repositories: Sequence[Path] = ()) -> list[Finding]:
    """Return what is wrong with a model; `repositories` are where an ensemble's steps are looked for, beside its own."""
    return list(_Validation(folder, config_name, repositories).findings())


class _Validation:
    """Validation of one model."""

    def __init__(self, folder: Path, config_name: str, repositories: Sequence[Path]) -> None:
        self._folder = folder
        self._config_name = config_name
        self._file = config_file(folder, config_name)
        self._places = (folder.parent, *repositories)
        self._text = ""

    def findings(self) -> Iterator[Finding]:
        if not MODEL_NAME.fullmatch(self._folder.name):
            yield Finding(self._folder, 0, f"the folder's name is the model's, which must be {NAME_RULE}")
        try:
            config = read_config(self._file)
            self._text = self._file.read_text(encoding="utf-8") if self._file.is_file() else ""
        except ModelLoadFailed as exc:
            yield self._unreadable(str(exc))
            return
        try:
            require_loadable(self._folder, self._config_name)
        except ModelLoadFailed as exc:
            yield Finding(self._file if config.name not in ("", self._folder.name) else self._folder, self._line("name"), str(exc))
        yield from self._versions()
        yield from self._tensors("input", config.input)
        yield from self._tensors("output", config.output)
        yield from self._batching(config)
        if config.HasField("ensemble_scheduling"):
            yield from self._ensemble(config)
        elif config.backend == "python":
            yield from self._python(config.default_model_filename or "model.py")

    def _unreadable(self, said: str) -> Finding:
        found = _WHERE.fullmatch(said)
        if found is None:
            return Finding(self._file, 0, said)
        return Finding(self._file, int(found["line"]), f"this is no configuration of a model: {found['text']}")

    def _versions(self) -> Iterator[Finding]:
        for entry in sorted(self._folder.iterdir()):
            if entry.is_dir() and entry.name.isdecimal() and entry.name != str(int(entry.name)):
                yield Finding(entry, 0, f"version folders are numbers without leading zeros: call it {int(entry.name)}")
            elif entry.is_dir() and entry.name == "0":
                yield Finding(entry, 0, "versions are counted from 1 on: Triton passes 0 over")

    def _tensors(self, kind: str, tensors: Tensors) -> Iterator[Finding]:
        seen: set[str] = set()
        for tensor in tensors:
            line = self._line("name", tensor.name)
            if not tensor.name:
                yield Finding(self._file, self._line(kind), f"an {kind} has no name")
            elif tensor.name in seen:
                yield Finding(self._file, self._line("name", tensor.name, last=True), f"{kind} {tensor.name!r} is there twice")
            seen.add(tensor.name)
            if tensor.data_type == model_config_pb2.TYPE_INVALID:
                yield Finding(self._file, line, f"{kind} {tensor.name!r} has no data_type, such as TYPE_FP32")
            if not tensor.dims:
                yield Finding(self._file, line, f"{kind} {tensor.name!r} has no dims, such as [ 3 ]; -1 stands for any size")
            elif any(size == 0 or size < -1 for size in tensor.dims):
                yield Finding(self._file, line, f"{kind} {tensor.name!r}: dims are sizes from 1 on, or -1 for any size")

    def _batching(self, config: model_config_pb2.ModelConfig) -> Iterator[Finding]:
        if config.max_batch_size < 0:
            yield Finding(self._file, self._line("max_batch_size"), "max_batch_size must be 0 (the model batches nothing) or more")
        if config.HasField("dynamic_batching") and config.max_batch_size < 1:
            line = self._line("dynamic_batching")
            yield Finding(self._file, line, "dynamic_batching needs a max_batch_size of 1 or more: Triton adds the batch's dimension by it")

    def _python(self, name: str) -> Iterator[Finding]:
        for file in sorted(self._folder.glob(f"[0-9]*/{name}")):
            try:
                tree = ast.parse(file.read_bytes(), filename=str(file))
            except (SyntaxError, ValueError) as exc:
                yield Finding(file, getattr(exc, "lineno", None) or 0, f"this is not Python: {getattr(exc, 'msg', exc)}")
                continue
            except OSError:
                continue  # told before
            found = next((each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == _PYTHON_CLASS), None)
            is_bound = any(_binds(each, _PYTHON_CLASS) for each in tree.body)
            if found is None and not is_bound:
                yield Finding(file, 0, f"the python backend looks for a class {_PYTHON_CLASS} in it, and there is none")
            elif found is not None and not found.bases and not any(_binds(each, "execute") for each in found.body):
                yield Finding(file, found.lineno, f"{_PYTHON_CLASS} has no method execute(self, requests), which answers requests")

    def _ensemble(self, config: model_config_pb2.ModelConfig) -> Iterator[Finding]:
        inputs, outputs = {each.name for each in config.input}, {each.name for each in config.output}
        made, used = set(inputs), set()
        if not config.ensemble_scheduling.step:
            yield Finding(self._file, self._line("ensemble_scheduling"), "an ensemble needs a step")
        for step in config.ensemble_scheduling.step:
            yield from self._step(step)
            made |= set(step.output_map.values())
            used |= set(step.input_map.values())
        for name in sorted(used - made):
            yield Finding(self._file, self._line("value", name), f"no step gives {name!r}, and it is no input of the ensemble")
        for name in sorted(outputs - made):
            yield Finding(self._file, self._line("name", name), f"no step gives the output {name!r}")
        for name in sorted(inputs - used):
            yield Finding(self._file, self._line("name", name), f"no step takes the input {name!r}")

    def _step(self, step: model_config_pb2.ModelEnsembling.Step) -> Iterator[Finding]:
        line = self._line("model_name", step.model_name)
        folder = next((place / step.model_name for place in self._places if step.model_name and (place / step.model_name).is_dir()), None)
        if folder is None:
            yield Finding(self._file, line, f"the step's model {step.model_name!r} is in none of {', '.join(map(str, self._places))}")
            return
        try:
            config = read_config(config_file(folder, self._config_name))
        except ModelLoadFailed:
            return  # said of that model
        for kind, tensors, mapped in (("input", config.input, step.input_map), ("output", config.output, step.output_map)):
            there = [each.name for each in tensors]
            for name in sorted(set(mapped) - set(there)) if there else ():
                yield Finding(
                    self._file, self._line("key", name), f"{step.model_name!r} has no {kind} {name!r}; it has: {', '.join(there)}"
                )
        needed = {each.name for each in config.input if not each.optional}
        for name in sorted(needed - set(step.input_map)):
            yield Finding(self._file, line, f"the step gives {step.model_name!r} no input {name!r}")

    def _line(self, field: str, value: str | None = None, *, last: bool = False) -> int:
        """Return the line on which a field, with this value if one is given, is first or last; 0 if nowhere."""
        pattern = rf"\b{field}\s*:\s*[\"']{re.escape(value)}[\"']" if value is not None else rf"^\s*{field}\b"
        found = list(re.finditer(pattern, self._text, re.MULTILINE))
        return self._text.count("\n", 0, found[-1 if last else 0].end()) + 1 if found else 0


def _binds(statement: ast.stmt, name: str) -> bool:
    """Whether a statement gives something this name: a definition, an import or an assignment."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return statement.name == name
        case ast.Import() | ast.ImportFrom():
            return any((each.asname or each.name) in (name, "*") for each in statement.names)
        case ast.Assign():
            return any(isinstance(each, ast.Name) and each.id == name for each in statement.targets)
        case ast.If() | ast.Try():
            return any(_binds(each, name) for each in (*statement.body, *statement.orelse))
    return False
