"""Messages of the wire between gateways and nodes: any bytes are one message that can be sent on as it is, or none."""

from __future__ import annotations

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from control_plane.node.domain.messages import WrongMessage, decode, encode


def check(data: bytes) -> None:
    try:
        message = decode(data)
    except WrongMessage as exc:
        str(exc).encode()
        return
    assert decode(encode(message)) == message


if __name__ == "__main__":
    fuzz(check)
