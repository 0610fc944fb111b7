"""Port of `generation` to what writes chats as prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from control_plane.generation.domain.generative_model import ChatFormat
from control_plane.generation.domain.messages import Message


class ChatTemplates(Protocol):
    """Renderer of chat templates, which are others' programs: their time and memory are bounded."""

    async def render(self, chat: ChatFormat, messages: Sequence[Message], *, max_bytes: int) -> str:
        """Write messages as the prompt for the assistant's next turn.

        Raises InvalidRequest: the template refuses these messages. PayloadTooLarge: the prompt has more than `max_bytes`.
        UpstreamFailed: the template is wrong, or takes too long or too much memory. Overloaded: too many chats wait.
        """

    async def close(self) -> None: ...
