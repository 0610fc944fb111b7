"""Parser of the log of an embedded Triton, which finds in it why a load has failed. Pure.

One file has lines of three formats (server 24.10): Triton's own (`--log-format=ISO8601`), those of its Python
stubs (glog), and those of protobuf. A line with none of these prefixes continues the line before, or was
printed by a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ([IWEF]) \d+ ([^\s:\]]+):\d+\] ?(.*)")
_GLOG = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ([^\s:\]]+):\d+\] ?(.*)")
_PROTOBUF = re.compile(r"\[libprotobuf (?:ERROR|FATAL) [^\]]*\] ?(.*)")

_FRAMES = "At:"
"""Line after which pybind11 adds the frames of a Python exception to its text, one indented line each."""

_PREAMBLE = re.compile(r"load failed for model '[^']*': (?:version \d+ is at UNAVAILABLE state: )?|failed to load '[^']*': ")

_POLLED = ", failed to poll from model repository"
"""End of Triton's answer where a model's configuration or folder cannot be used; the reason is in its log
only.
"""

_REPEATED = re.compile(
    r"ERROR: Failed to create instance: |failed to load '[^']*' version \d+: |failed to load model '[^']*': |failed to load '[^']*'$"
    r"|Poll failed for model directory '[^']*': |Failed to preinitialize Python stub: "
)
"""Beginnings of log lines that repeat what the caller knows, such as the model's name; the reason follows
them.
"""

_NAMED = re.compile(r"(?:model|model directory|load|unload|version) '([^']+)'|/triton/repository/([^/']+)/")
"""How log lines name the model that they are about: by its name, or by a path in the repository that is
placed for Triton.
"""

_DEAD = re.compile(r"Received unexpected response from Python backend stub: ([\w.-]+)|Stub process '([^']+)' is not healthy\.?")
"""Triton's answers about a stub that has died: the first if `abandoned_load.py` has answered in its place,
the second if Triton itself has noticed.
"""

_OF_AN_ENSEMBLE = "Invalid argument: ensemble "
"""Prefix of an ensemble's failure, which Triton logs again, cut short, at every later load of any model
(24.10); the answer has the whole text.
"""

_PROTOBUFS = "libprotobuf"
_TEXT_PROTO = "failed to read text proto from "
_NO_STUB = "Failed to preinitialize Python stub"
_MAX_TOLD = 3
_MAX_CHARS = 1000


@dataclass(frozen=True, slots=True)
class StubEnd:
    """End of a Python stub's process."""

    instance: str
    """Triton's name of the model instance; empty for a stub that was never seen alive."""
    how: str
    """`ended with exit status 1` or the like."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """Entry of the log; `severity` is I, W, E or F, and empty for printed text without a prefix."""

    severity: str
    source: str
    text: str


def read_lines(log: bytes) -> list[LogLine]:
    """Parse a piece of the log, of which the first and the last line may be cut off."""
    found: list[LogLine] = []
    for line in log.decode(errors="replace").split("\n"):
        entry = _read(line)
        if entry.severity or not (found and found[-1].source.startswith("pb_stub")):
            found.append(entry)
        else:  # a stub's entry may have several lines
            found[-1] = LogLine(found[-1].severity, found[-1].source, f"{found[-1].text}\n{line}")
    return found


def _read(line: str) -> LogLine:
    if match := _ISO.fullmatch(line):
        return LogLine(match[1], match[2], _unquoted(match[3]))
    if match := _GLOG.fullmatch(line):
        return LogLine(match[1], match[2], match[3].strip())
    if match := _PROTOBUF.fullmatch(line):
        return LogLine("E", _PROTOBUFS, match[1])
    return LogLine("", "", line)


def _unquoted(text: str) -> str:
    try:
        unquoted = json.loads(text, strict=False)
    except ValueError:  # the text is not quoted, or was cut off
        return text.strip('"')
    return unquoted if isinstance(unquoted, str) else text


def without_frames(text: str) -> str:
    """Remove the stack frames from the text of a failure; the exception's own lines stay."""
    kept, is_frames = list[str](), False
    for line in text.split("\n"):
        if line == _FRAMES:
            is_frames = True
        elif is_frames and line.startswith(";") and kept:  # the failure of another version of the model follows
            kept[-1], is_frames = kept[-1] + line, False
        elif not (is_frames and line[:1].isspace()):
            kept.append(line)
            is_frames = False
        while is_frames and kept and not kept[-1].strip():
            kept.pop()
    return "\n".join(kept).strip().rstrip("; \t\r\n")


def is_told_in_log_only(answer: str) -> bool:
    """Whether the reason of a failed load is not in Triton's answer."""
    return answer.endswith(_POLLED)


def brief(failure: str) -> str:
    """Shorten the text of a failure for a list of models, which has the model's name and state beside it."""
    return _PREAMBLE.sub("", failure)


def load_failure(answer: str, models: Sequence[str], lines: Sequence[LogLine], *, ends: Sequence[StubEnd] = (), is_alone: bool) -> str:
    """Explain why a load of the first of `models` (the others are an ensemble's steps) has failed.

    The text is Triton's answer, with the end of the stub it speaks of (from `ends`), and what the log adds.
    `lines` are those since the load began; if it `is_alone`, no other load was under way, and lines that name
    no model are about it as well.
    """
    answer, is_dead = _with_end(without_frames(answer), ends)
    reasons = dict.fromkeys(_reasons(lines, models, is_alone=is_alone))
    beyond = "; ".join([each for each in reasons if each and each not in answer and not _DEAD.search(each)][-_MAX_TOLD:])
    if is_dead and is_alone and not beyond and (last := _printed(lines)):
        beyond = f"what it and others printed last: {last}"
    if not beyond:
        return answer
    found = f"{answer.removesuffix(_POLLED)}: {beyond}" if answer.endswith(_POLLED) else f"{answer}; {beyond}"
    return found[:_MAX_CHARS]


def _with_end(answer: str, ends: Sequence[StubEnd]) -> tuple[str, bool]:
    """Replace Triton's text that a stub does not answer by how the stub ended; also return whether there was
    such a text.
    """
    match = _DEAD.search(answer)
    if match is None:
        return answer, False
    of_this = [end for end in ends if end.instance == (match[1] or match[2])] or [end for end in ends if not end.instance]
    how = of_this[0].how if len({end.how for end in of_this}) == 1 else "ended"
    hint = " (as by the kernel when memory runs out)" if how.endswith("SIGKILL") else ""
    return _DEAD.sub(lambda _: f"its Python process {how} before the model was ready{hint}", answer), True


def _reasons(lines: Sequence[LogLine], models: Collection[str], *, is_alone: bool) -> Iterator[str]:
    """Yield the reasons in lines about these models; protobuf's line before one says where its text
    is wrong.
    """
    by_protobuf = ""
    for line in lines:
        if line.source == _PROTOBUFS:
            by_protobuf = line.text.rpartition("ModelConfig: ")[2].strip()
            continue
        if _is_failure(line) and _is_about(line.text, models, is_alone=is_alone):
            why = f": {by_protobuf}" if by_protobuf and _TEXT_PROTO in line.text else ""
            yield _REPEATED.sub("", without_frames(line.text)).strip() + why
        by_protobuf = ""


def _is_failure(line: LogLine) -> bool:
    is_said = line.severity in ("E", "F") or line.text.startswith(_NO_STUB)
    return is_said and not line.text.startswith(_OF_AN_ENSEMBLE)


def _is_about(text: str, models: Collection[str], *, is_alone: bool) -> bool:
    named = {match[1] or match[2] for match in _NAMED.finditer(text)}
    return not named.isdisjoint(models) if named else is_alone


def _printed(lines: Sequence[LogLine]) -> str:
    """Return the last printed lines without a prefix; empty if there are none."""
    return " / ".join([line.text.strip() for line in lines if not line.severity and line.text.strip()][-_MAX_TOLD:])
