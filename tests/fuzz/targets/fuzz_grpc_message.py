"""gRPC's framing and heads: slices change nothing, decompression is bounded, any fields are a head or a refusal."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from tests.fuzz.harness import fuzz, instrumented, slices

with instrumented():
    from control_plane.core.errors import InvalidRequest, NotSupported, PayloadTooLarge
    from control_plane.protocols.grpc import MessageReader, answer_of, message_in, read_head, status_fields, timeout_value
    from control_plane.protocols.kserve.requests.body_limits import InflateBound

LIMIT = 2000
NAMES = (
    b":method",
    b":path",
    b"content-type",
    b"grpc-timeout",
    b"grpc-encoding",
    b"te",
    b"x-a-bin",
    b"connection",
    b"grpc-status",
    b"grpc-message",
)
PLAIN = ((b":method", b"POST"), (b":path", b"/a/b"), (b"content-type", b"application/grpc"))


def check(data: bytes) -> None:
    mark, rest = (data[0], data[1:]) if data else (0, b"")
    if mark % 2:
        check_head(rest)
        return
    whole, sliced = read([rest]), read(slices(rest))
    assert whole == sliced
    for frame in whole[0]:
        check_message(frame, (b"gzip", b"deflate", b"identity", b"br")[mark // 2 % 4])


def read(pieces: Iterable[bytes]) -> tuple[list[bytes], bool, bool]:
    """The frames, whether one was too large, and whether the rest is none."""
    reader, frames = MessageReader(LIMIT), []
    try:
        for piece in pieces:
            frames += [bytes(frame) for frame in reader.feed(piece)]
            assert reader.partial_bytes <= LIMIT + 5
    except PayloadTooLarge:
        return [], True, False
    return frames, False, reader.is_between_messages


def check_message(frame: bytes, encoding: bytes) -> None:
    try:
        message = bytes(message_in(frame, encoding, InflateBound(LIMIT, "too large")))
    except (InvalidRequest, NotSupported, PayloadTooLarge) as exc:
        str(exc).encode()
        return
    assert len(message) <= LIMIT
    assert message == (frame[5:] if frame[0] == 0 else zlib.decompress(frame[5:], zlib.MAX_WBITS | 32))


def check_head(data: bytes) -> None:
    """Each line is a field: a byte that chooses its name, and its value."""
    fields = tuple((NAMES[line[0] % len(NAMES)], line[1:]) for line in data.split(b"\n") if line)
    for each in (fields, (*PLAIN, *fields)):
        try:
            head = read_head(each)
        except (InvalidRequest, NotSupported) as exc:
            str(exc).encode()
            continue
        assert head.timeout_s is None or head.timeout_s >= 0
        if head.timeout_s:
            timeout_value(head.timeout_s)
    answer = answer_of((), (), fields)
    assert 0 <= answer.code < 1000
    status_fields(answer.code, answer.details)


if __name__ == "__main__":
    fuzz(check)
