"""Redis's answers: any bytes are answers or one error, however they arrive."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fuzz.harness import fuzz, instrumented, slices

with instrumented():
    from control_plane.protocols.resp import RespError, RespReader


def read(pieces: Iterable[bytes]) -> tuple[list[str], bool]:
    """The answers, as text since errors do not compare equal, and whether they end in an error."""
    reader, answers = RespReader(), []
    for piece in pieces:
        try:
            answers += [repr(answer) for answer in reader.feed(piece)]
        except RespError as exc:
            str(exc).encode()
            return answers, True
    return answers, False


def check(data: bytes) -> None:
    (whole, fails), (sliced, sliced_fails) = read([data]), read(slices(data))
    assert fails == sliced_fails
    if fails:
        assert whole == [], "what came together with an error is not read"
    else:
        assert whole == sliced


if __name__ == "__main__":
    fuzz(check)
