"""Messages of a chat: parsed, and freed of the control tokens by which their authors could forge a turn.

A chat template writes its control tokens (`<|im_end|>`) around each message as text, which the model's tokenizer then reads
as one token wherever it stands, in a message as well. OpenAI's own API never reads a control token in a message. So such text
is broken up by a space after its first character (`< |im_end|>`): it says the same, and is no token any more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import InvalidRequest

MAX_MESSAGES = 4096
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Role -> the role that templates know it by."""
_NAME = re.compile("[a-zA-Z0-9_-]{1,64}")
_PASSES = 8
"""How often a text is gone through: a space could complete another token, which is broken up in turn."""
AT_ONCE = 256
"""Messages, or parts of one, that are parsed in one step: some 0.3 ms."""
CHARS_AT_ONCE, _MESSAGE_CHARS = 64 * 1024, 64
"""Characters that are searched in one step, and what a message takes beside its own."""

Message = dict[str, str]
"""A message as templates see it: `role`, `content`, and a `name` if it has one."""


def message_steps(value: Any) -> Steps[tuple[Message, ...]]:
    """Parse a chat's messages, in steps. Raises InvalidRequest, which names the wrong field."""
    if type(value) is not list or not 0 < len(value) <= MAX_MESSAGES:
        raise InvalidRequest(f"messages must be a list of 1 to {MAX_MESSAGES} messages", field="messages")
    found = []
    for index, each in enumerate(value, 1):
        found.append((yield from _message_steps(each, f"messages[{index - 1}]")))
        if index % AT_ONCE == 0:
            yield
    return tuple(found)


def _message_steps(value: Any, where: str) -> Steps[Message]:
    if type(value) is not dict:
        raise InvalidRequest(f"{where} must be an object with role and content", field=where)
    for name, each in value.items():  # what OpenAI's answers have beside these is sent back by some clients, empty
        if name not in ("role", "content", "name") and each not in (None, [], ""):
            raise InvalidRequest(f"unsupported parameter: {where}.{name[:64]}; a message has role, content and name here", field=where)
    role = value.get("role")
    if type(role) is not str or role not in ROLES:
        raise InvalidRequest(f"{where}.role must be one of {', '.join(ROLES)}; tools are not supported", field=f"{where}.role")
    message = {"role": ROLES[role], "content": (yield from _content_steps(value.get("content"), f"{where}.content"))}
    name = value.get("name")
    if name is not None:
        if type(name) is not str or not _NAME.fullmatch(name):
            raise InvalidRequest(f"{where}.name must be 1 to 64 letters, digits, _ or -", field=f"{where}.name")
        message["name"] = name
    return message


def _content_steps(value: Any, where: str) -> Steps[str]:
    if type(value) is str:
        return value
    if type(value) is not list or not value:
        raise InvalidRequest(f"{where} must be a text, or a list of parts of type text", field=where)
    texts = []
    for index, each in enumerate(value, 1):
        texts.append(_part(each, f"{where}[{index - 1}]"))
        if index % AT_ONCE == 0:
            yield
    return "".join(texts)


def _part(value: Any, where: str) -> str:
    kind = value.get("type") if type(value) is dict else None
    if kind != "text" or type(value.get("text")) is not str:
        raise InvalidRequest(f"{where} must be a part of type text; images, audio and files are not supported", field=where)
    text: str = value["text"]
    return text


def without_control_tokens(messages: Sequence[Message], tokens: tuple[str, ...]) -> Steps[tuple[Message, ...]]:
    """Return the same messages with each control token in their contents broken up, in steps.

    Raises InvalidRequest: a text has tokens within tokens, which no space takes apart.
    """
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    found, seen_chars = [], 0
    for index, each in enumerate(messages):
        content = yield from _broken_up(each["content"], longest_first, f"messages[{index}]")
        found.append({**each, "content": content})
        seen_chars += len(content) + _MESSAGE_CHARS
        if seen_chars > CHARS_AT_ONCE:
            seen_chars = 0
            yield
    return tuple(found)


def _broken_up(text: str, tokens: Sequence[str], where: str) -> Steps[str]:
    """Return the text without tokens. One search for each token: a regular expression took 0.4 s for a megabyte of them, in which
    the process did nothing else."""
    for _ in range(_PASSES):
        found = []
        for token in tokens:
            if token in text:
                found.append(token)
            if len(text) > CHARS_AT_ONCE:
                yield
        if not found:
            return text
        for token in found:
            text = text.replace(token, f"{token[0]} {token[1:]}" if len(token) > 1 else " ")
            if len(text) > CHARS_AT_ONCE:
                yield
    raise InvalidRequest(f"{where}.content has control tokens of this model that cannot be told from text", field=f"{where}.content")
