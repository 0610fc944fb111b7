"""Reads the YAML files of `tidegate apply`: one object for each document, with the line of each of its fields.

YAML is read as JSON's types only (YAML 1.2's core schema): `no` is a text, and no date or number in base 60 comes of
what was not meant as one. JSON is YAML, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from control_plane.admin.declared.kinds import DeclaredKind, Place, kind_named, problems_of
from control_plane.core.errors import InvalidRequest
from control_plane.core.model import MODEL_NAME, NAME_RULE

_MAX_FILE_BYTES = 16 * 2**20
_MAX_NODES = 1_000_000
"""Values in one file, each alias counted as what it stands for: a few lines of nested aliases can stand for more
than memory holds."""
_MAX_DIGITS = 300
_MAX_PROBLEMS = 100
"""Problems told at once: a file of something else can have one on each of its million lines."""
_MAX_SHOWN = 100
"""Characters shown of a name or key of the file."""
_SUFFIXES = frozenset((".yaml", ".yml", ".json"))
_OF_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_UNKNOWN_TAG = "unknown tag {!r}; values are texts, numbers, true, false, null, lists and fields"
_FIELDS = ("kind", "name", "metadata", "spec")


@dataclass(frozen=True, slots=True)
class Document:
    """One object that a file declares."""

    kind: DeclaredKind
    name: str
    spec: Mapping[str, Any]
    where: str
    """File and line, for messages."""


class _Loader(yaml.SafeLoader):
    """Loader whose plain scalars are null, booleans, integers, floats or text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own way


_FORMS: dict[str, re.Pattern[str]] = {}
"""Forms of plain scalars by the type that they stand for."""

for _tag, _form, _first in (
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", "[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _FORMS[_tag] = re.compile(f"^(?:{_form})$")
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _FORMS[_tag], _first)


def read_documents(files: Iterable[Path], stdin: str | None = None) -> list[Document]:
    """Read every document of these files, of all YAML and JSON files below these folders, and of `stdin`.

    Raises InvalidRequest: the text has a line for each thing that is wrong, with its file, its line and what would be
    right.
    """
    texts = [*(_texts(files)), *([("standard input", stdin)] if stdin is not None else [])]
    problems: list[str] = []
    found = [each for name, text in texts for each in _documents(name, text, problems)]
    seen: dict[tuple[str, str], str] = {}
    for each in found:
        before = seen.setdefault((each.kind.name, each.name), each.where)
        if before != each.where:
            problems.append(f"{each.where}: {each.kind.name} {each.name!r} is declared at {before} as well; keep one")
    if not texts or (not found and not problems):
        problems.append("no documents found: name files or folders that hold *.yaml with -f, or - for standard input")
    if problems:
        more = len(problems) - _MAX_PROBLEMS
        told = problems[:_MAX_PROBLEMS] + ([f"and {more} more problems"] if more > 0 else [])
        raise InvalidRequest("\n".join(told))
    return found


def bounded_text(name: str, stream: IO[bytes]) -> str:
    """Read a stream's UTF-8 text. Raises InvalidRequest: it has more than 16 MiB, or is not UTF-8.

    What counts is what was read: a pipe and a device have no size.
    """
    content = stream.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise InvalidRequest(f"{name} has more than {_MAX_FILE_BYTES >> 20} MiB: it is no file of documents, or split it")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"{name} is not UTF-8 text: byte {exc.start}") from exc


def _texts(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    for path in files:
        try:
            for file in _files_below(path) if path.is_dir() else [path]:
                with file.open("rb") as opened:
                    yield str(file), bounded_text(str(file), opened)
        except OSError as exc:
            raise InvalidRequest(f"{exc.filename or path} cannot be read: {exc.strerror}") from exc


def _files_below(folder: Path) -> list[Path]:
    """Return the folder's files, and links that lead nowhere, which are an error; no pipe: it may never end."""
    named = (each for each in folder.rglob("*") if each.suffix in _SUFFIXES)
    return sorted(each for each in named if not each.is_dir() and not each.is_fifo())


def _documents(name: str, text: str, problems: list[str]) -> Iterator[Document]:
    try:
        roots = _composed(text)
        reading = _Reading(name, problems)
        # A list is what `get -o json` prints.
        for node in [each for root in roots for each in (root.value if isinstance(root, yaml.SequenceNode) else [root])]:
            if (document := reading.document(node)) is not None:
                yield document
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line = mark.line + 1 if mark is not None else 1
        problems.append(f"{name}:{line}: this is not YAML: {exc.problem or exc.context}")
    except yaml.YAMLError as exc:
        problems.append(f"{name}: this is not YAML: {' '.join(str(exc).split())}")
    except RecursionError:
        problems.append(f"{name}: it is nested too deeply")


def _composed(text: str) -> list[Any]:
    try:
        return [node for node in yaml.compose_all(text, _Loader) if node is not None]
    except (ValueError, OverflowError) as exc:  # chr()'s, which PyYAML lets through
        raise yaml.YAMLError("an escape stands for no character of Unicode") from exc


class _Reading:
    """Reading of one file's nodes into documents; what is wrong is added to `problems`."""

    def __init__(self, file: str, problems: list[str]) -> None:
        self._file = file
        self._problems = problems
        self._nodes = 0

    def document(self, node: Any) -> Document | None:
        """Read one document; None if something is wrong with it."""
        count = len(self._problems)
        lines: dict[Place, int] = {}
        content = self._value(node, (), lines)
        where = f"{self._file}:{node.start_mark.line + 1}"
        if not isinstance(content, dict):
            self._say(node, "a document must have `kind`, `name` and `spec`")
            return None
        for field in content.keys() - set(_FIELDS):
            self._say_at(lines, (field,), f"unknown field {field[:_MAX_SHOWN]!r}; a document has: kind, name (or metadata.name), spec")
        kind, name = self._kind(content, where, lines), self._name(content, where, lines)
        spec = content.get("spec")
        if spec is None:
            spec = {}
        if not isinstance(spec, dict):
            self._say_at(lines, ("spec",), "spec must be fields, such as `spec: {model: m}`")
        elif kind is not None:
            for problem in problems_of(kind, spec):
                path = ".".join(map(str, problem.place))
                self._say_at(lines, ("spec", *problem.place), f"{kind.name} {name or ''}: {path}: {problem.text}")
        if len(self._problems) > count or kind is None or name is None:
            return None
        return Document(kind, name, spec, where)

    def _kind(self, content: Mapping[str, Any], where: str, lines: Mapping[Place, int]) -> DeclaredKind | None:
        kind = content.get("kind")
        if not isinstance(kind, str):
            self._problems.append(f"{where}: `kind` is missing, such as `kind: Route`")
            return None
        try:
            return kind_named(kind)
        except InvalidRequest as exc:
            self._say_at(lines, ("kind",), str(exc))
            return None

    def _name(self, content: Mapping[str, Any], where: str, lines: Mapping[Place, int]) -> str | None:
        metadata = content.get("metadata")
        if metadata is not None and (not isinstance(metadata, dict) or metadata.keys() != {"name"}):
            self._say_at(lines, ("metadata",), "metadata has one field: name")
            return None
        if metadata is not None and "name" in content:
            self._say_at(lines, ("name",), "give `name` or `metadata.name`, not both")
            return None
        name = metadata["name"] if metadata is not None else content.get("name")
        if not isinstance(name, str) or not MODEL_NAME.fullmatch(name):
            told = "`name` is missing" if name is None else f"the name {_quoted(name)} must be {NAME_RULE}; a number goes in quotes"
            self._problems.append(f"{where}: {told}")
            return None
        return name

    def _value(self, node: Any, place: Place, lines: dict[Place, int]) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise yaml.YAMLError(f"more than {_MAX_NODES} values, with what its aliases stand for")
        lines.setdefault(place, node.start_mark.line + 1)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _OF_COLLECTIONS:
            self._say(node, _UNKNOWN_TAG.format(node.tag[:50]))
        if isinstance(node, yaml.MappingNode):
            return self._fields(node, place, lines)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(each, (*place, index), lines) for index, each in enumerate(node.value)]
        return self._scalar(node)

    def _fields(self, node: yaml.MappingNode, place: Place, lines: dict[Place, int]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                # Never shown: nested aliases can stand for a text longer than memory holds.
                self._say(key, "the name of a field must be a text, not a list or fields")
                continue
            name = key.value
            if name in found:
                self._say(key, f"field {name[:_MAX_SHOWN]!r} is given twice")
            lines[(*place, name)] = key.start_mark.line + 1
            found[name] = self._value(value, (*place, name), lines)
        return found

    def _scalar(self, node: Any) -> Any:
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        form = _FORMS.get(kind)
        if form is not None and not form.fullmatch(node.value):  # a tag that the file gives, as in `!!int x`
            self._say(node, f"{_quoted(node.value)} is no {kind}")
            return None
        match kind:
            case "null":
                return None
            case "bool":
                return node.value.lower() == "true"
            case "int" if len(node.value) <= _MAX_DIGITS:
                return int(node.value)
            case "int":
                self._say(node, f"a number of {len(node.value)} digits; more than {_MAX_DIGITS} are none of ours")
                return None
            case "float":
                return float(node.value)
            case "str":
                return node.value
        self._say(node, _UNKNOWN_TAG.format(node.tag[:50]))
        return None

    def _say(self, node: Any, text: str) -> None:
        self._problems.append(f"{self._file}:{node.start_mark.line + 1}: {text}")

    def _say_at(self, lines: Mapping[Place, int], place: Place, text: str) -> None:
        """Add a problem at the line of the field, or of the nearest one around it that the file has."""
        around: Sequence[Place] = [place[:count] for count in range(len(place), -1, -1)]
        line = next((lines[each] for each in around if each in lines), 1)
        self._problems.append(f"{self._file}:{line}: {text}")


def _quoted(value: Any) -> str:
    """Return a value of the file as messages show it."""
    return repr(value[:_MAX_SHOWN] if isinstance(value, str) else value)[: 4 * _MAX_SHOWN]
