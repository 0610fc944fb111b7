"""Stall detector of a call: its client neither sends the rest of a message, nor opens its window for the answer.

Progress is counted in sixteenths of what is to come: a client that sends or reads a byte at a time would hold memory for ever.
Used by `frontends/grpc/call`, about once a second, so that calls need no timers of their own.
"""

from __future__ import annotations


class CallStalls:
    """Stall detector of one call, which compares what its client has sent and read with what it had at the last check."""

    __slots__ = ("_blocked_since_s", "_progress", "_sent_messages", "_stalled_since_s", "_unsent_bytes", "_unsent_step")

    def __init__(self) -> None:
        self._progress = -1
        """Sixteenths of the message that had come."""
        self._stalled_since_s = 0.0
        self._unsent_bytes = self._unsent_step = self._sent_messages = 0
        """Bytes that waited for the client's window when it last made progress, how many fewer are progress, and the messages
        sent by then."""
        self._blocked_since_s = 0.0

    def stalled_sending_s(self, now_s: float, *, received_bytes: int, message_bytes: int, may_send: bool) -> float:
        """Return for how long the client has sent no further part of a message of so many bytes, though it could."""
        progress = received_bytes // max(message_bytes // 16, 1)
        if progress != self._progress or not may_send:
            self._progress, self._stalled_since_s = progress, now_s
        return now_s - self._stalled_since_s

    def stalled_reading_s(self, now_s: float, *, unsent_bytes: int, sent_messages: int) -> float:
        """Return for how long the client has read nothing of what waits for its window."""
        is_new = sent_messages != self._sent_messages or unsent_bytes > self._unsent_bytes
        if is_new:
            self._sent_messages, self._unsent_step = sent_messages, max(unsent_bytes // 16, 1)
        if not unsent_bytes or is_new or self._unsent_bytes - unsent_bytes >= self._unsent_step:
            self._unsent_bytes, self._blocked_since_s = unsent_bytes, now_s
        return now_s - self._blocked_since_s
