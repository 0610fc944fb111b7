"""Triton's log: whatever stands in it, what is told of a failed load is bounded text, and is found in a time that grows with it."""

from __future__ import annotations

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from control_plane.triton.triton_log import StubEnd, brief, load_failure, read_lines, without_frames

_ANSWERS = (
    "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: ValueError: x;\n",
    "failed to load 'm', failed to poll from model repository",
    "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: Stub process 'm_0' is not healthy.",
)


def check(data: bytes) -> None:
    kind, log = (data[0] % 4, data[1:]) if data else (0, b"")
    answer = _ANSWERS[kind] if kind < len(_ANSWERS) else log.decode(errors="replace")
    lines = read_lines(log)
    assert len(lines) <= log.count(b"\n") + 1
    found = load_failure(answer, ["m", "step"], lines, ends=(StubEnd("m_0", "was killed by SIGSEGV"),), is_alone=bool(len(log) % 2))
    assert len(found) <= max(1000, len(answer) + 100)
    assert "\nAt:\n" not in without_frames(found)
    assert len(without_frames(found)) <= len(found)
    assert len(brief(found)) <= len(found)


if __name__ == "__main__":
    fuzz(check)
