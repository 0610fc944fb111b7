"""Renders chat templates in processes of their own, which are started when the first chat comes: `generation/ports.ChatTemplates`.

Whoever may write models writes templates, and Jinja's sandbox bounds neither their time nor their memory. A template that
exceeds either takes its process with it. One process renders one chat at a time, some 0.1 ms each; long chats have another
one than short ones, which must not wait for what a caller makes long.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from control_plane.concurrency.shared_task import join, outcome
from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.errors import InvalidRequest, Overloaded, PayloadTooLarge, UpstreamFailed
from control_plane.generation.domain.generative_model import TEMPLATE, ChatFormat
from control_plane.generation.domain.messages import Message

_PROGRAM = Path(__file__).with_name("template_child.py")
_SHORT_BYTES, _MESSAGE_BYTES = 64 * 1024, 256
"""Size up to which a chat is short, and what each message counts beside its own: a template may go through all for each of them."""
_MAX_WAITING = 256
_RENDER_S = 5.0
"""Most seconds for a template, which may take one of the CPU's: the machine may be busy."""
_MEMORY_BYTES, _COPIES = 256 << 20, 16
"""Memory of a process: this much, and so many times the longest prompt."""
_LEFT_S = 0.1
"""Most seconds for the chat of a caller who has left, about what a start takes: ended with each such caller, a process would
have to be started for everyone who comes after one with a deadline of a millisecond."""
_START_S = 20.0
_NO_PROCESS = "no process can be started to render chat templates; try again shortly"
_AVOIDED_S = 30.0
"""Seconds for which a template is not tried again that has ended its process over a short chat."""
_TOO_MUCH = f"the chat template of this model (parameter {TEMPLATE}) takes too much time or memory"


class TemplateProcesses:
    """Renderer of chat templates with a process for short chats and one for long ones."""

    def __init__(self, *, max_prompt_bytes: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._short, self._long = _TemplateProcess(max_prompt_bytes), _TemplateProcess(max_prompt_bytes)
        self._now_s = now_s
        self._avoided_until_s = BoundedCache[str, float].of_entries(1000)

    async def render(self, chat: ChatFormat, messages: Sequence[Message], *, max_bytes: int) -> str:
        """Render a chat; see the port. Cancelled while the process is at this chat, it leaves that to the next one."""
        if self._now_s() < (self._avoided_until_s.get(chat.template) or 0.0):
            raise UpstreamFailed(f"{_TOO_MUCH}; it is tried again shortly")
        said = await self._process_for(messages).ask(
            {
                "template": chat.template,
                "max_bytes": max_bytes,
                "variables": {
                    "messages": messages,
                    "add_generation_prompt": True,
                    "bos_token": chat.bos_token,
                    "eos_token": chat.eos_token,
                    "tools": None,
                    "documents": None,
                },
            }
        )
        if said is None:
            if self._process_for(messages) is self._short:  # else others' chats would pay for a caller's long one
                self._avoided_until_s.forget(chat.template)
                self._avoided_until_s.keep(chat.template, self._now_s() + _AVOIDED_S)
            raise UpstreamFailed(_TOO_MUCH)
        if "too_long" in said:
            raise PayloadTooLarge(f"the chat becomes a prompt of more than {max_bytes} bytes (TIDEGATE_MAX_PROMPT_BYTES)")
        if "refusal" in said:
            raise InvalidRequest(f"the chat template of this model refuses these messages: {said['refusal']}", field="messages")
        if "defect" in said:
            raise UpstreamFailed(f"the chat template of this model (parameter {TEMPLATE}) fails: {said['defect']}")
        prompt: str = said["prompt"]
        return prompt

    async def close(self) -> None:
        """End both processes; nothing is rendered from then on."""
        for each in (self._short, self._long):
            each.is_closed = True
            await each.end()

    def _process_for(self, messages: Sequence[Message]) -> _TemplateProcess:
        return self._short if sum([len(each["content"]) + _MESSAGE_BYTES for each in messages]) <= _SHORT_BYTES else self._long


class _TemplateProcess:
    """Process that renders one chat after the other, started again whenever it has ended."""

    def __init__(self, max_prompt_bytes: int) -> None:
        self._max_line_bytes = 6 * max_prompt_bytes + (64 << 10)  # a character of a prompt may be written as an escape
        self._max_memory_bytes = _MEMORY_BYTES + _COPIES * max_prompt_bytes
        self._process: asyncio.subprocess.Process | None = None
        self._starting: asyncio.Task[asyncio.subprocess.Process | Exception] | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._is_at_left = False
        """Whether the process is still at the chat of a caller who has left."""
        self.is_closed = False

    async def ask(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Send a line in its turn and return the answer to it; None: the process has ended, or had to be ended.

        Raises Overloaded: too many wait.
        """
        if self._waiting >= _MAX_WAITING or self.is_closed:
            raise Overloaded("too many chats wait for their templates to be rendered; try again shortly")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._ask(asked)
        finally:
            self._waiting -= 1

    async def end(self) -> None:
        if self._starting is not None:
            with suppress(Exception):  # then there is nothing to end
                self._process = await join(self._starting)
        process = self._process
        self._kill()
        if process is not None:
            await process.wait()

    def _kill(self) -> None:
        process, self._process, self._is_at_left = self._process, None, False
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()

    async def _end_left(self) -> None:
        """Await the end of the chat whose caller has left, or end the process."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        with suppress(TimeoutError, OSError, ValueError):
            async with asyncio.timeout(_LEFT_S):
                if await process.stdout.readline():
                    self._is_at_left = False
                    return
        await self.end()

    async def _ask(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        if self._is_at_left:
            await self._end_left()
        process = self._process
        if process is None or process.returncode is not None:
            process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_RENDER_S):
                process.stdin.write(orjson.dumps(asked) + b"\n")
                await process.stdin.drain()
                if line := await process.stdout.readline():
                    return orjson.loads(line)  # type: ignore[no-any-return]
        except (TimeoutError, OSError, ValueError):  # ValueError: the line is longer than any prompt may be
            pass
        except asyncio.CancelledError:
            if process is self._process:
                self._is_at_left = True  # also while its line is written, which goes on
            raise
        self._kill()
        await process.wait()
        return None

    async def _started(self) -> asyncio.subprocess.Process:
        """Start the process; where a caller leaves meanwhile, the next one finds it. Raises Overloaded: it cannot be started."""
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(outcome(self._start), name="template-process")
        starting = self._starting
        try:
            async with asyncio.timeout(_START_S):
                self._process = await join(starting)
        except TimeoutError as exc:
            raise Overloaded(_NO_PROCESS) from exc
        except OSError as exc:
            self._starting = None
            raise Overloaded(_NO_PROCESS) from exc
        self._starting = None  # only now: one that has started in the moment in which its caller left is the next one's, too
        return self._process

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(_PROGRAM),
            str(self._max_memory_bytes),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            cwd="/",
            limit=self._max_line_bytes,
            start_new_session=True,
        )
