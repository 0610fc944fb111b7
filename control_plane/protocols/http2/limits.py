"""What one end of an HTTP/2 connection allows the other."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.protocols.http2 import frames as h2
from control_plane.protocols.http2.frames import Setting


@dataclass(frozen=True, slots=True)
class Http2Limits:
    max_streams: int = 1000
    stream_window_bytes: int = 2 * 2**20
    """A message up to this arrives without waiting for a round trip."""
    connection_window_bytes: int = 16 * 2**20
    """What one connection may have us hold beyond bodies that were granted room."""
    max_frame_bytes: int = 256 * 2**10
    max_header_bytes: int = 16 * 2**10


def opening(limits: Http2Limits, *, is_server: bool) -> list[bytes]:
    """What each end sends first."""
    settings = {
        Setting.HEADER_TABLE_SIZE: 0,
        Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
        Setting.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
    }
    if is_server:
        settings[Setting.MAX_CONCURRENT_STREAMS] = limits.max_streams
    else:
        settings[Setting.ENABLE_PUSH] = 0
    room = h2.window_update(0, limits.connection_window_bytes - h2.DEFAULT_WINDOW_BYTES)
    return [*(() if is_server else (h2.PREFACE,)), h2.settings_frame(settings), room]
