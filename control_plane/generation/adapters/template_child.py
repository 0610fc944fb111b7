"""Program that renders chat templates: run by `template_process` as a process of its own, in Python's isolated mode.

It imports nothing of the control plane and holds nothing that a template could read. A template that takes longer than its
time, or more memory than this process may have, ends the process. Each line of standard input is a JSON object
(`template`, `variables`, `max_bytes`), each line of standard output its answer (`prompt`, `too_long`, `refusal` or `defect`).

The environment is the one for which the templates of Hugging Face's tokenizers are written (transformers,
`utils/chat_template_utils.py`): sandboxed and immutable, `raise_exception`, `strftime_now`, a `tojson` that escapes nothing,
`break` and `continue`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CPU_S = 1.0
_MAX_WORDS = 400


class _Refusal(TemplateError):
    """The template itself refuses the messages."""


def _raise_exception(message: object) -> None:
    raise _Refusal(str(message))


def _tojson(value: object, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # the local time, as templates expect it


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment.from_string(template)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Render what is asked for, within the time that a template has."""
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # SIGPROF ends the process; a busy machine does not
    try:
        prompt = _compiled(asked["template"]).render(**asked["variables"])
        if len(prompt.encode("utf-8", "replace")) > asked["max_bytes"]:
            return {"too_long": True}
        return {"prompt": prompt}
    except _Refusal as exc:
        return {"refusal": str(exc)[:_MAX_WORDS]}
    except Exception as exc:  # whatever a template does, its caller is told
        return {"defect": f"{type(exc).__name__}: {exc}"[:_MAX_WORDS]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def confine(max_memory_bytes: int) -> None:
    """Take from this process what no template needs."""
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])  # uvloop leaves open what may be inherited
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the gateway, which ends this one
    for limit, most in (("RLIMIT_AS", max_memory_bytes), ("RLIMIT_FSIZE", 0), ("RLIMIT_NPROC", 0), ("RLIMIT_CORE", 0)):
        with suppress(ValueError, OSError, AttributeError):
            resource.setrlimit(getattr(resource, limit), (most, most))


def main() -> None:
    _compiled("")  # imports what is imported late
    confine(int(sys.argv[1]))
    for line in sys.stdin.buffer:
        said = json.dumps(answer(json.loads(line)), ensure_ascii=False)
        sys.stdout.buffer.write(said.encode("utf-8", "replace") + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
