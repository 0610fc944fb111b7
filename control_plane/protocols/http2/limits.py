"""Limits that one end of an HTTP/2 connection sets the other, and the SETTINGS that announce them."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Setting


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits of one end; all of them are announced to the peer when the connection opens."""

    max_streams: int = 1000
    stream_window_bytes: int = 2 * 2**20
    """Messages up to this size arrive without waiting a round trip for a WINDOW_UPDATE."""
    connection_window_bytes: int = 16 * 2**20
    """Bytes that one connection may make us buffer, in addition to bodies that were granted room."""
    max_frame_bytes: int = 256 * 2**10
    max_header_bytes: int = 16 * 2**10


def opening(limits: Http2Limits, *, is_server: bool) -> list[bytes]:
    """The frames that open a connection: at a client's end the preface, then SETTINGS and a wider connection
    window."""
    settings = {
        # So that equal header blocks mean equal fields, and one that was read before is looked up (`headers`).
        Setting.HEADER_TABLE_SIZE: 0,
        Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
        Setting.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
    }
    if is_server:
        settings[Setting.MAX_CONCURRENT_STREAMS] = limits.max_streams
    else:
        settings[Setting.ENABLE_PUSH] = 0
    # SETTINGS change the windows of streams only, not the connection's (RFC 9113, 6.9.2).
    room = h2.window_update(0, limits.connection_window_bytes - h2.DEFAULT_WINDOW_BYTES)
    return [*(() if is_server else (h2.PREFACE,)), h2.settings_frame(settings), room]
