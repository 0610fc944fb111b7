"""Reads and edits a model's `config.pbtxt` for `tidegate tune`: its knobs, and its text with some of them
changed.

The text is edited in place, so that comments stay. An edit is accepted only if the result parses as exactly
the intended configuration; if none does (unusual layouts), the configuration is written anew, without
comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import text_format

from control_plane.core.errors import InvalidRequest
from control_plane.protocols.kserve.messages import model_config_pb2
from control_plane.triton.adapters.model_config import read_config
from control_plane.tuning.domain.candidates import DEFAULT, SERVE_FLAGS, Candidate, Knob

PARAMETERS = {Knob.THREADS: "intra_op_thread_count", Knob.LANES: "lanes"}
_READS_THREADS = ("onnxruntime", "onnxruntime_onnx", "text_encoder")
"""Backends and platforms that know the parameter `intra_op_thread_count` even if the configuration does not
mention it."""

_MARK = "# tidegate tune: "


class _Place(NamedTuple):
    """Place of a knob's value in a configuration text: patterns that find the place, and texts to write there.

    `@` stands for the value. `stands` finds an existing value; `belongs_in` finds the block into which
    `field` is put; `appended` is a block of its own for the end of the text.
    """

    stands: str
    belongs_in: str
    field: str
    appended: str


_NO_MATCH = r"(?!)"  # matches nothing


def _parameter(key: str) -> _Place:
    stands = rf'(\bkey\s*:\s*"{key}"\s*,?\s*value\s*:?\s*\{{\s*string_value\s*:\s*")[^"]*'
    return _Place(stands, _NO_MATCH, "", f'parameters {{ key: "{key}" value: {{ string_value: "@" }} }}')


_PLACES = {
    Knob.INSTANCES: _Place(
        r"(\binstance_group\b[^}]*?\bcount\s*:\s*)\d+", r"(\binstance_group\b[^{]*\{)", " count: @", "instance_group [ { count: @ } ]"
    ),
    Knob.QUEUE_DELAY: _Place(
        r"(\bmax_queue_delay_microseconds\s*:\s*)\d+",
        r"(\bdynamic_batching\b[^{]*\{)",
        " max_queue_delay_microseconds: @",
        "dynamic_batching { max_queue_delay_microseconds: @ }",
    ),
    **{knob: _parameter(key) for knob, key in PARAMETERS.items()},
}


@dataclass(frozen=True, slots=True)
class TunedConfig:
    """Configuration file of the tuned model, as text and parsed."""

    path: Path
    text: str
    message: Any
    """The parsed text, as Triton's `ModelConfig`."""

    @property
    def knobs(self) -> dict[Knob, int]:
        """Knobs that the configuration has, with their present values; 0 means the runtime's own choice."""
        found: dict[Knob, int] = {}
        groups = self.message.instance_group
        if len(groups) < 2:  # with several groups it is not clear whose count to change
            found[Knob.INSTANCES] = (groups[0].count if groups else 0) or 1
        for knob, key in PARAMETERS.items():
            if key in self.message.parameters:
                found[knob] = _integer(self.message.parameters[key].string_value)
        if self.message.backend in _READS_THREADS or self.message.platform in _READS_THREADS:
            found.setdefault(Knob.THREADS, 0)
        if self.message.HasField("dynamic_batching"):
            found[Knob.QUEUE_DELAY] = self.message.dynamic_batching.max_queue_delay_microseconds
        return found

    def runs_on_cpu(self, *, gpu_is_there: bool) -> bool:
        """Whether all its instances run on CPUs; KIND_AUTO does so where there is no GPU."""
        kinds = model_config_pb2.ModelInstanceGroup
        groups = [group.kind for group in self.message.instance_group] or [kinds.KIND_AUTO]
        return all(kind == kinds.KIND_CPU or (kind == kinds.KIND_AUTO and not gpu_is_there) for kind in groups)

    def text_of(self, candidate: Candidate) -> str:
        """Return the configuration text of a candidate, without knobs that flags of `tidegate serve` set."""
        text, message = self.text, self.message
        for knob, value in candidate.changes:
            if knob not in SERVE_FLAGS:
                message = _with_knob(message, knob, value)
                text = next(
                    (edit for edit in _edits(text, knob, str(value)) if _parses_as(edit, message)), text_format.MessageToString(message)
                )
        return text

    def text_with_reason(self, candidate: Candidate, reason: str) -> str:
        """Return the text of `text_of` under a header that says what was changed and why."""
        what = "the default is best, nothing is changed" if candidate == DEFAULT else f"{candidate.label}"
        lines = [what, reason, *([f"needs `tidegate serve {' '.join(candidate.serve_flags)}`"] if candidate.serve_flags else [])]
        kept = [line for line in self.text_of(candidate).splitlines(keepends=True) if not line.startswith(_MARK)]
        return "".join([*(f"{_MARK}{line}\n" for line in lines), *kept])


def read_tuned_config(path: Path) -> TunedConfig:
    """Read the file at `path`.

    Raises:
        ModelLoadFailed: it cannot be read.
        InvalidRequest: it does not exist, or is an ensemble's.
    """
    message = read_config(path)
    if not path.exists():
        raise InvalidRequest(f"{path} does not exist: write the model's configuration first, so that there is something to tune")
    if message.HasField("ensemble_scheduling"):
        raise InvalidRequest(f"{path} is an ensemble's, which computes nothing itself: name one of its models with --tune")
    return TunedConfig(path, path.read_text(encoding="utf-8"), message)


def text_input(model_config: Path) -> str | None:
    """Return the name of the model's input if it has exactly one and that takes texts; else None."""
    inputs = read_config(model_config).input
    return inputs[0].name if len(inputs) == 1 and inputs[0].data_type == model_config_pb2.TYPE_STRING else None


def _with_knob(message: Any, knob: Knob, value: int | str) -> Any:
    turned = type(message)()
    turned.CopyFrom(message)
    if knob is Knob.INSTANCES:
        (turned.instance_group[0] if turned.instance_group else turned.instance_group.add()).count = value
    elif knob is Knob.QUEUE_DELAY:
        turned.dynamic_batching.max_queue_delay_microseconds = value
    else:
        turned.parameters[PARAMETERS[knob]].string_value = str(value)
    return turned


def _edits(text: str, knob: Knob, value: str) -> Iterator[str]:
    """Yield edited texts, the likeliest first: value replaced in place, put into its block, or appended."""
    place = _PLACES[knob]
    for pattern, new in ((place.stands, "@"), (place.belongs_in, place.field)):
        for match in re.finditer(pattern, text):
            yield f"{text[: match.start()]}{match[1]}{new.replace('@', value)}{text[match.end() :]}"
    yield f"{text.rstrip()}\n\n{place.appended.replace('@', value)}\n"


def _parses_as(text: str, message: Any) -> bool:
    try:
        return bool(text_format.Parse(text, model_config_pb2.ModelConfig()) == message)
    except text_format.ParseError:
        return False


def _integer(text: str) -> int:
    return int(text) if text.isdecimal() else 0
