"""Recognises generative models by Triton's model configuration, and reads from it how a chat becomes a prompt.

The interface is that of Triton's vLLM backend (its `auto_complete_config`): text_input, optional inputs, text_output,
decoupled. Source of the form: model_config.proto (Triton 24.10) as JSON, in which a field that has its default value may be
missing. Another interface, such as TensorRT-LLM's, would be recognised here, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from control_plane.core.errors import UpstreamFailed
from control_plane.generation.domain.messages import ROLES

REQUIREMENTS = (
    "no generative model: one is decoupled, takes text_input (a TYPE_STRING of dims [ 1 ]), may be given sampling_parameters "
    "(another one), needs nothing else, and answers with text_output (a TYPE_STRING)"
)
TEMPLATE, CONTROL_TOKENS, BOS, EOS = "chat_template", "chat_control_tokens", "bos_token", "eos_token"
"""Parameters of a model's configuration (`parameters { key: ... value { string_value: ... } }`)."""

TEXT, SAMPLING, STREAM, WITHOUT_PROMPT = "text_input", "sampling_parameters", "stream", "exclude_input_in_output"
FINISH_REASON, INPUT_TOKENS, OUTPUT_TOKENS = "finish_reason", "num_input_tokens", "num_output_tokens"
GENERATED = "text_output"
RETURNED = (FINISH_REASON, INPUT_TOKENS, OUTPUT_TOKENS)
"""Outputs that a model has only where it is asked for them, by an input `return_...`; older vLLM backends have none of them."""

_NO_TEMPLATE = f"has no chat template: set the parameter {TEMPLATE} of its configuration to one (Jinja), or use /v1/completions"
_CONTROL_TOKEN = re.compile(r"<[|｜][^<>\s]{1,64}[|｜]>|</?s>|\[/?[A-Z_]{2,32}\]|<</?[A-Z_]{2,32}>>|<(?:start|end)_of_[a-z]{1,32}>")
"""What tokens look like by which chat templates tell turns apart; `</s>` is also HTML's, hence only those that a template has."""

_MADE_TOKEN = re.compile(r"<([|｜])(?![^<>\s{}'\"]{1,64}\1>)")
"""Where a template puts a token together, as `'<|' + message.role + '|>'` or `<|{{ message.role }}|>`."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a model takes chats."""

    template: str
    """Jinja."""
    bos_token: str = ""
    eos_token: str = ""
    control_tokens: tuple[str, ...] = ()
    """What may not occur in messages as it is, since it would forge a turn."""


@dataclass(frozen=True, slots=True)
class GenerativeModel:
    """Description of a generative model."""

    inputs: frozenset[str]
    """The inputs that it has."""
    chat: ChatFormat | None = None
    no_chat: str = _NO_TEMPLATE
    """Why it takes no chats, where it does not."""

    @property
    def returned(self) -> tuple[str, ...]:
        """The outputs that it can be asked for beside the text."""
        return tuple(each for each in RETURNED if f"return_{each}" in self.inputs)


def read_generative_model(config: bytes | bytearray) -> GenerativeModel | None:
    """Describe the generative model of this configuration; None for any other kind of model.

    Raises UpstreamFailed: `config` is not a model configuration.
    """
    try:
        return _read(orjson.loads(config))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise UpstreamFailed("Triton's answer is not a model's configuration") from exc


def _read(config: dict[str, Any]) -> GenerativeModel | None:
    inputs = {each["name"]: each for each in config["input"]}
    has_output = any(each["name"] == GENERATED and each["data_type"] == "TYPE_STRING" for each in config["output"])
    takes_text = all(_is_text(inputs[each]) for each in (TEXT, SAMPLING)) if {TEXT, SAMPLING} <= inputs.keys() else False
    needs_more = any(not each.get("optional") for name, each in inputs.items() if name != TEXT)
    is_decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled"))
    if not (has_output and takes_text and is_decoupled) or needs_more or int(config.get("max_batch_size", 0)) > 0:
        return None
    parameters = {name: each.get("string_value", "") for name, each in config.get("parameters", {}).items()}
    names = frozenset(inputs)
    if not parameters.get(TEMPLATE):
        return GenerativeModel(names)
    chat = _chat_format(parameters)
    if chat is None:
        return GenerativeModel(
            names, None, f"cannot chat: the parameter {CONTROL_TOKENS} of its configuration must be a JSON list of texts"
        )
    return GenerativeModel(names, chat)


def _is_text(tensor: dict[str, Any]) -> bool:
    return tensor["data_type"] == "TYPE_STRING" and [int(each) for each in tensor["dims"]] == [1]


def _of_roles(template: str) -> Iterator[str]:
    """The tokens that a template makes of a message's role, which are not written in it."""
    for bar in set(_MADE_TOKEN.findall(template)):
        yield from (f"<{bar}{role}{bar}>" for role in ROLES.values())


def _chat_format(parameters: dict[str, str]) -> ChatFormat | None:
    """The format by these parameters; None: the list of control tokens is none."""
    template, bos, eos = (parameters.get(name, "") for name in (TEMPLATE, BOS, EOS))
    if CONTROL_TOKENS not in parameters:
        found = {*_CONTROL_TOKEN.findall(template), *_of_roles(template), bos, eos} - {""}
        return ChatFormat(template, bos, eos, tuple(sorted(found)))
    try:
        tokens = orjson.loads(parameters[CONTROL_TOKENS])
    except orjson.JSONDecodeError:
        return None
    if type(tokens) is not list or not all(type(each) is str and each for each in tokens):
        return None
    return ChatFormat(template, bos, eos, tuple(sorted(set(tokens))))
