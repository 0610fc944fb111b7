"""Writes answers in the form of OpenAI's completions and chats: events of a stream, or one whole body.

A piece of text becomes one event; its start and end are written once for all. Source:
https://platform.openai.com/docs/api-reference/chat/streaming.
"""

from __future__ import annotations

from typing import Any

import orjson

from control_plane.generation.domain.completion_request import CompletionRequest
from control_plane.generation.domain.generation_tensors import Generated

_REASONS = frozenset(("stop", "length", "content_filter"))
_DONE = b"data: [DONE]\n\n"


class CompletionAnswer:
    """Answer to one call, from the responses of its model."""

    def __init__(self, wanted: CompletionRequest, *, id_: str, created_s: int) -> None:
        self._wanted = wanted
        self._has_begun = False
        self._finish_reason = ""
        self._texts: list[str] = []
        self._responses = 0
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        kind = ("chat.completion.chunk" if wanted.is_streamed else "chat.completion") if wanted.is_chat else "text_completion"
        self._head = {"id": id_, "object": kind, "created": created_s, "model": wanted.model}
        self._start, self._end = self._around_text()

    def take(self, generated: Generated) -> bytes:
        """Take a response of the model, and return its events; a whole answer has none."""
        self._responses += 1
        self._finish_reason = generated.finish_reason or self._finish_reason
        if generated.input_tokens is not None:
            self.input_tokens = generated.input_tokens
        if generated.output_tokens is not None:
            self.output_tokens = (self.output_tokens or 0) + generated.output_tokens
        if not self._wanted.is_streamed:
            if generated.text:
                self._texts.append(generated.text)
            return b""
        event = self._start + orjson.dumps(generated.text) + self._end if generated.text else b""
        return event if self._has_begun else self._began() + event

    def finish(self) -> bytes:
        """What follows the model's last response: the last events, or the whole body."""
        if self._wanted.is_streamed:
            return (b"" if self._has_begun else self._began()) + self._last_events()
        text, reason = "".join(self._texts), self._reason()
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if self._wanted.is_chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        return orjson.dumps({**self._head, "choices": [choice], "usage": self._usage()})

    def _began(self) -> bytes:
        """The event that comes first: a chat's names its author."""
        self._has_begun = True
        return self._event({"role": "assistant", "content": ""}, None) if self._wanted.is_chat else b""

    def _last_events(self) -> bytes:
        last, usage = self._event({} if self._wanted.is_chat else "", self._reason()), self._usage()
        if self._wanted.includes_usage and usage is not None:
            last += b"data: " + orjson.dumps({**self._head, "choices": [], "usage": usage}) + b"\n\n"
        return last + _DONE

    def _event(self, said: Any, reason: str | None) -> bytes:
        choice = {"index": 0, "delta" if self._wanted.is_chat else "text": said, "logprobs": None, "finish_reason": reason}
        usage: dict[str, Any] = {"usage": None} if self._wanted.includes_usage else {}
        return b"data: " + orjson.dumps({**self._head, "choices": [choice], **usage}) + b"\n\n"

    def _around_text(self) -> tuple[bytes, bytes]:
        """Return the bytes of a streamed event before and after its piece of text, which are the same for all events."""
        text = "\0text\0"  # in JSON it is written with escapes, which no name of a model has
        event = self._event({"content": text} if self._wanted.is_chat else text, None)
        start, _, end = event.partition(orjson.dumps(text))
        return start, end

    def _reason(self) -> str:
        """Why the text ended; where the model does not say, by how much it has generated."""
        if self._finish_reason:
            return self._finish_reason if self._finish_reason in _REASONS else "stop"
        generated = self._responses if self.output_tokens is None else self.output_tokens
        return "length" if generated >= self._wanted.max_tokens else "stop"

    def _usage(self) -> dict[str, int] | None:
        """The numbers of tokens; None where the model does not count them."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        total = self.input_tokens + self.output_tokens
        return {"prompt_tokens": self.input_tokens, "completion_tokens": self.output_tokens, "total_tokens": total}
