"""Reads the input file of a batch: JSONL, one request on each line.

Everything that can be known to be wrong is found before the batch is accepted, and named by its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from control_plane.batches.domain.batch import EMBEDDINGS, Chunk
from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import ControlPlaneError, InvalidRequest
from control_plane.embeddings.domain.openai_large_input import member_steps
from control_plane.embeddings.domain.openai_request import request_steps

MAX_LINES = 50_000
"""Most lines of a batch, and most inputs in all of them together: OpenAI's own limits."""
MAX_ID_CHARS = 512
MAX_LINE_BYTES = 8 << 20
"""Longest line: 2048 inputs, OpenAI's most for one request, of 4 KiB each."""

_CHUNK_LINES, _CHUNK_INPUTS, _CHUNK_BYTES = 32, 256, 256 * 1024
"""Most lines, inputs and bytes of a chunk, unless one line alone has more: so much is computed at a time, held in
memory with its answers, and done again if who computes it is killed."""
_LARGE_LINE_BYTES = 128 * 1024
"""Longer lines are read in steps: what is parsed at once, such as millions of empty lists, holds up everybody."""
_STEP_BYTES = 64 * 1024
"""Lines of so many bytes take some milliseconds at worst, and a tenth of that as nearly all are."""
_FORM = '{"custom_id": "...", "method": "POST", "url": "/v1/embeddings", "body": {"model": "...", "input": ...}}'


@dataclass(frozen=True, slots=True)
class Line:
    """A request of a batch: the caller's name for it, and the body of the call."""

    custom_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class InputLines:
    """Summary of a valid input file."""

    model: str
    chunks: tuple[Chunk, ...]


class InputReader:
    """Parser of an input file, which validates it piece by piece, in steps, and cuts it into chunks; it keeps one line, and
    digests of all names.
    """

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._seen: set[bytes] = set()
        """Digests of the names so far: 50,000 names of 512 characters would be 100 MB."""
        self._model = ""
        self._number = self._total = 0
        self._lines = self._inputs = self._start = 0
        self._unpaused_bytes = 0
        """Bytes of the lines that were read since the last pause."""
        self._rest = bytearray()
        self._at = 0
        """Place of the rest, a line that has not ended, in the file."""

    def feed(self, piece: bytes) -> Steps[None]:
        """Read the next piece. Raises InvalidRequest, which names the line."""
        self._rest += piece
        begin = 0
        while (end := self._rest.find(b"\n", begin)) >= 0:
            yield from self._line(bytes(self._rest[begin:end]), self._at + begin)
            begin = end + 1
        del self._rest[:begin]
        self._at += begin
        if len(self._rest) > MAX_LINE_BYTES:
            raise _wrong(self._number + 1, f"is longer than {MAX_LINE_BYTES} bytes")

    def finish(self) -> Steps[InputLines]:
        """Read the last line, where no line feed follows it, and return what the file has. Raises InvalidRequest."""
        size_bytes = self._at + len(self._rest)
        if self._rest:
            yield from self._line(bytes(self._rest), self._at)
        if not self._lines:
            raise InvalidRequest("the input file is empty; it must have a request on each line", field="input_file_id")
        return InputLines(self._model, (*self._chunks, Chunk(self._lines, self._start, size_bytes)))

    def _line(self, text: bytes, begin: int) -> Steps[None]:
        self._number += 1
        number = self._number
        if number > MAX_LINES:
            raise InvalidRequest(f"the input file has more than {MAX_LINES} lines; make several batches of it", field="input_file_id")
        try:
            line = yield from line_steps(text)
            wanted = yield from request_steps(line.body)
        except ControlPlaneError as exc:
            raise _wrong(number, str(exc)) from exc
        name = blake2b(line.custom_id.encode(), digest_size=16).digest()
        if name in self._seen:
            raise _wrong(number, f"custom_id {line.custom_id[:100]!r} is that of an earlier line; each must be unique")
        if self._model and wanted.model != self._model:
            raise _wrong(number, f"model is {wanted.model!r}, but {self._model!r} on the first line; a batch is for one model")
        self._seen.add(name)
        self._model = wanted.model
        self._total += len(wanted.inputs)
        if self._total > MAX_LINES:
            raise _wrong(number, f"the lines up to this one have more than {MAX_LINES} inputs; make several batches of them")
        self._add_to_chunk(begin, begin + len(text), len(wanted.inputs))
        self._unpaused_bytes += len(text)
        if self._unpaused_bytes >= _STEP_BYTES:
            self._unpaused_bytes = 0
            yield

    def _add_to_chunk(self, begin: int, end: int, inputs: int) -> None:
        """Add a line to the chunk that grows, or begin another with it."""
        is_full = self._lines == _CHUNK_LINES or self._inputs + inputs > _CHUNK_INPUTS or end - self._start > _CHUNK_BYTES
        if self._lines and is_full:
            self._chunks.append(Chunk(self._lines, self._start, begin))
            self._lines = self._inputs = 0
            self._start = begin
        self._lines, self._inputs = self._lines + 1, self._inputs + inputs


def line_steps(text: bytes) -> Steps[Line]:
    """Read one line, but for what its body means, in steps. Raises InvalidRequest."""
    if len(text) > _LARGE_LINE_BYTES:
        fields, written = yield from member_steps(text, "body")
        is_last = type(fields) is dict and type(fields.get("body")) is dict  # and no null that follows it, which would count
        return Line(_checked(fields, has_body=bool(written) and is_last), written)
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"is not valid JSON ({exc}); it must be {_FORM}") from exc
    body = fields.get("body") if type(fields) is dict else None
    custom_id = _checked(fields, has_body=type(body) is dict)
    try:
        return Line(custom_id, orjson.dumps(body))
    except orjson.JSONEncodeError as exc:  # less deep than what can be read
        raise InvalidRequest("body is nested too deeply") from exc


def _checked(fields: Any, *, has_body: bool) -> str:
    """Check the fields of a line, and return its custom_id. Raises InvalidRequest."""
    if type(fields) is not dict:
        raise InvalidRequest(f"must be a JSON object: {_FORM}")
    custom_id = fields.get("custom_id")
    if type(custom_id) is not str or not 0 < len(custom_id) <= MAX_ID_CHARS:
        raise InvalidRequest(f"custom_id must be a string of 1 to {MAX_ID_CHARS} characters")
    if fields.get("method") != "POST":
        raise InvalidRequest('method must be "POST"')
    if fields.get("url") != EMBEDDINGS:
        raise InvalidRequest(f'url must be "{EMBEDDINGS}", the endpoint of the batch')
    if not has_body:
        raise InvalidRequest('body must be a JSON object, such as {"model": "...", "input": "..."}')
    return custom_id


def lines_of(content: bytes) -> Steps[list[Line]]:
    """Read the requests of a chunk that `InputReader` has accepted, in steps."""
    lines, paused = list[Line](), 0
    for begin, end in _spans(content):
        lines.append((yield from line_steps(content[begin:end])))
        if end - paused >= _STEP_BYTES:
            paused = end
            yield
    return lines


def _spans(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each line begins and ends; the one after the last line feed may be missing."""
    at = 0
    while at < len(content):
        end = content.find(b"\n", at)
        end = len(content) if end < 0 else end
        yield at, end
        at = end + 1


def _wrong(number: int, why: str) -> InvalidRequest:
    return InvalidRequest(f"line {number}: {why}", field="input_file_id")
