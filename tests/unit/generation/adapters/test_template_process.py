"""Chat templates in their processes: what they may do, and what becomes of those that take too much."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from control_plane.core.errors import ControlPlaneError, InvalidRequest, Overloaded, PayloadTooLarge, UpstreamFailed
from control_plane.generation.adapters import template_process
from control_plane.generation.adapters.template_process import TemplateProcesses
from control_plane.generation.domain.generative_model import ChatFormat
from tests.fakes.triton.generative_model import TEMPLATE

TURN = [{"role": "user", "content": "hi é"}]
MOST = 64 << 10
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@asynccontextmanager
async def processes(**options: Any) -> AsyncIterator[TemplateProcesses]:
    found = TemplateProcesses(max_prompt_bytes=MOST, **options)
    try:
        yield found
    finally:
        await found.close()


async def rendered(by: TemplateProcesses, template: str, messages: list[dict[str, str]] = TURN, **format_: Any) -> str:
    return await by.render(ChatFormat(template, **format_), messages, max_bytes=MOST)


async def test_what_templates_of_tokenizers_use() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}\n"
        "    {% if m.role == 'none' %}{% continue %}{% endif %}\n"
        "{{ m | tojson }}{{ m.get('name') }}{% endfor %}\n"
        "{% if tools is none and documents is none %}{{ strftime_now('%Y') | length }}{% endif %}{{ eos_token }}"
    )
    async with processes() as it:
        assert await rendered(it, TEMPLATE) == "<|im_start|>user hi é<|im_end|> <|im_start|>assistant"
        assert await rendered(it, template, bos_token="<s>", eos_token="</s>") == '<s>{"role": "user", "content": "hi é"}None4</s>'


@pytest.mark.parametrize(
    ("template", "error", "words"),
    [
        pytest.param("{{ raise_exception('roles must alternate') }}", InvalidRequest, "refuses these messages: roles must", id="refuses"),
        pytest.param("{% if %}", UpstreamFailed, r"parameter chat_template\) fails: TemplateSyntaxError", id="no-template"),
        pytest.param("{{ messages[9].content }}", UpstreamFailed, "UndefinedError", id="undefined"),
        pytest.param("{{ ''.__class__.__mro__ }}", UpstreamFailed, "SecurityError", id="reaches-out"),
        pytest.param("{{ messages.append(1) }}", UpstreamFailed, "SecurityError", id="changes"),
        pytest.param("{% include '/etc/passwd' %}", UpstreamFailed, "fails: TypeError: no loader", id="reads-files"),
        pytest.param("{{ 'x' * 10**10 }}", UpstreamFailed, "MemoryError", id="much-memory"),
        pytest.param(
            "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
            UpstreamFailed,
            "MemoryError|too much",
            id="doubles",
        ),
        pytest.param("{{ 'é' * 40000 }}", PayloadTooLarge, "a prompt of more than 65536 bytes", id="long"),
        pytest.param(ENDLESS, UpstreamFailed, "takes too much time or memory", id="endless"),
    ],
)
async def test_what_a_template_may_not_do(template: str, error: type[ControlPlaneError], words: str) -> None:
    async with processes() as it:
        with pytest.raises(error, match=words):
            await rendered(it, template)
        assert await rendered(it, TEMPLATE) == "<|im_start|>user hi é<|im_end|> <|im_start|>assistant", "others go on"


async def test_a_template_that_takes_too_long_over_a_short_chat_is_left_alone_for_a_while() -> None:
    now_s = [0.0]
    async with processes(now_s=lambda: now_s[0]) as it:
        with pytest.raises(UpstreamFailed, match="too much"):
            await rendered(it, ENDLESS)
        with pytest.raises(UpstreamFailed, match="tried again shortly"):
            await rendered(it, ENDLESS)
        assert it._short._process is None, "it was not started for that"
        now_s[0] = 31.0
        with pytest.raises(UpstreamFailed, match=r"time or memory$"):
            await rendered(it, ENDLESS)


async def test_a_long_chat_keeps_no_short_one_waiting_nor_its_template_from_others() -> None:
    template = f"{{% if messages[0].content | length > 9 %}}{ENDLESS}{{% endif %}}{{{{ messages[0].content }}}}"
    async with processes() as it, asyncio.TaskGroup() as tasks:
        long = tasks.create_task(anext(failing(it, template)))
        await asyncio.sleep(0.2)
        assert await rendered(it, template) == "hi é"
        assert "too much" in await long
        assert await rendered(it, template) == "hi é"


async def test_a_template_that_goes_through_all_messages_for_each_is_not_taken_from_others_by_a_chat_of_many() -> None:
    template = "{% for a in messages %}{% for b in messages %}{% for c in range(9) %}{% endfor %}{% endfor %}{% endfor %}x"
    async with processes() as it:
        with suppress(UpstreamFailed):
            await rendered(it, template, [{"role": "user", "content": "a"}] * 1000)
        assert await rendered(it, template) == "x"


async def failing(it: TemplateProcesses, template: str) -> AsyncIterator[str]:
    try:
        await rendered(it, template, [{"role": "user", "content": "x" * MOST}])
    except UpstreamFailed as exc:
        yield str(exc)


async def test_a_caller_who_leaves_takes_his_template_along() -> None:
    async with processes() as it:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await rendered(it, ENDLESS)
        assert await rendered(it, "{{ messages[0].content }}") == "hi é"


async def test_callers_who_leave_at_once_cost_others_no_start() -> None:
    long = [{"role": "user", "content": "h" * 10}] * 800
    async with processes() as it:
        await rendered(it, TEMPLATE)
        first = it._short._process
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.0005):
                    await rendered(it, TEMPLATE, long)
            said = await rendered(it, TEMPLATE)
            assert ("hi é" in said, "hhh" in said) == (True, False)
        assert it._short._process is first


async def test_a_start_whose_caller_leaves_is_that_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, start, have_left = list[Any](), asyncio.create_subprocess_exec, asyncio.Event()

    async def counted(*program: Any, **options: Any) -> asyncio.subprocess.Process:
        starts.append(program)
        await have_left.wait()
        return await start(*program, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", counted)
    async with processes() as it:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await rendered(it, TEMPLATE)
        have_left.set()
        assert "hi é" in await rendered(it, TEMPLATE)
        assert len(starts) == 1


async def test_a_start_that_ends_as_its_caller_leaves_is_that_of_the_next() -> None:
    async with processes() as it, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(rendered(it, TEMPLATE))
        while (starting := it._short._starting) is None:
            await asyncio.sleep(0)
        starting.add_done_callback(lambda _: asking.cancel())
        with pytest.raises(asyncio.CancelledError):
            await asking
        process = await starting
        assert isinstance(process, asyncio.subprocess.Process)
        try:
            assert "hi é" in await rendered(it, TEMPLATE)
            assert it._short._process is process
        except AssertionError:
            process.kill()  # else the loop would wait for it when it is closed
            raise


async def test_a_process_that_dies_is_started_again_and_ends_with_its_gateway() -> None:
    async with processes() as it:
        await rendered(it, TEMPLATE)
        first = it._short._process
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        await first.wait()
        await rendered(it, TEMPLATE)
        second = it._short._process
        assert second is not None
        assert second.stdin is not None
        second.stdin.close()  # as if the gateway were gone
        assert await second.wait() == 0


async def test_a_process_has_nothing_of_the_gateways() -> None:
    os.environ["TIDEGATE_TEST_SECRET"] = "secret"
    try:
        async with processes() as it:
            await rendered(it, TEMPLATE)
            process = it._short._process
            assert process is not None
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
            descriptors = os.listdir(f"/proc/{process.pid}/fd")
    finally:
        del os.environ["TIDEGATE_TEST_SECRET"]
    assert b"TIDEGATE" not in environment
    assert sorted(descriptors) == ["0", "1", "2"]


async def test_who_comes_when_too_many_wait_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "_MAX_WAITING", 1)
    async with processes() as it, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(rendered(it, TEMPLATE))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="too many chats wait"):
            await rendered(it, TEMPLATE)
        await waiting


async def test_after_the_end_nothing_is_started() -> None:
    async with processes() as it:
        await it.close()
        with pytest.raises(Overloaded):
            await rendered(it, TEMPLATE)
