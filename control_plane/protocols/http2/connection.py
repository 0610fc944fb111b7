"""Sans-I/O protocol engine of one HTTP/2 connection (RFC 9113), for either end.

Bytes go in by `receive`, events go to each stream's listener, and `output` holds what must be written to the
socket. It supports the part of HTTP/2 that gRPC needs: no push and no priorities. The gRPC frontend and the
adapter that calls Triton build their connections on it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

from control_plane.protocols.http2.headers import KnownBlocks
from control_plane.protocols.http2.limits import Http2Limits, opening
from control_plane.protocols.http2.receiving import Http2Receiver
from control_plane.protocols.http2.sending import Http2Sender
from control_plane.protocols.http2.state import ConnectionState
from control_plane.protocols.http2.stream import Stream, StreamListener, WholeAnswer, WholeCall


class Http2Connection:
    """Protocol engine of one end of an HTTP/2 connection: a receiver, a sender, and the state they share.

    A server passes `accept`, which returns the listener for each stream that the peer opens; a client passes
    None. `answer_verbatim` may answer a call that arrived whole (`WholeCall`) before a stream is created for it, and
    `refuse_head` one of which the header block alone has arrived, by a block of trailers.
    """

    def __init__(
        self,
        known: KnownBlocks,
        limits: Http2Limits,
        *,
        accept: Callable[[Stream], StreamListener] | None = None,
        answer_verbatim: Callable[[WholeCall], WholeAnswer | None] | None = None,
        refuse_head: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        self._state = state = ConnectionState(limits, is_server=accept is not None)
        sender = Http2Sender(state)
        self._receiver = receiver = Http2Receiver(
            state, sender, known, accept=accept, answer_verbatim=answer_verbatim, refuse_head=refuse_head
        )
        self.output, self.streams = state.output, state.streams
        # Bound here, which spares every frame or call a call.
        self.receive, self.go_on = receiver.receive, receiver.go_on
        self.send_headers, self.send_data = sender.send_headers, sender.send_data
        self.consumed, self.reset = state.flow.consumed, state.reset
        self.may_open = state.may_open
        self.announce_drain, self.leave = sender.announce_drain, sender.leave

    def start(self) -> None:
        """Send the connection preface and our settings."""
        self.output += opening(self._state.limits, is_server=self._state.is_server)

    def open(self, listener: StreamListener) -> Stream:
        """Open a stream of our own; the caller must send its head at once, so that stream ids arrive in
        order."""
        return self._state.open(listener)

    def end(self, most: int = sys.maxsize) -> bool:
        """The connection is gone: end at most `most` of its streams, the oldest first; returns whether more
        are left."""
        for stream in tuple(itertools.islice(self.streams.values(), most)):
            self._state.forget(stream).on_reset()
        return bool(self.streams)

    def on_second(self) -> None:
        """Drain the nuisance bucket; to be called about once a second, so that slow keep-alive pings never
        fill it."""
        self._state.nuisance.on_second()

    @property
    def awaits_preface(self) -> bool:
        return self._receiver.awaits_preface

    @property
    def unread_bytes(self) -> int:
        """Bytes that came and have not been handled."""
        return self._receiver.unread_bytes

    @property
    def is_leaving(self) -> bool:
        """Whether we have sent our last GOAWAY: new streams of the peer are refused."""
        return self._state.is_leaving

    @property
    def end_reason(self) -> str:
        """Why the peer ends streams before their time, in a few words; empty where it says nothing."""
        return self._state.end_reason

    @end_reason.setter
    def end_reason(self, reason: str) -> None:
        self._state.end_reason = reason

    @property
    def peer_is_draining(self) -> bool:
        """Whether the peer has sent GOAWAY: it accepts no new streams."""
        return self._state.peer_is_draining

    @property
    def last_peer_stream_id(self) -> int:
        """The highest id of a stream that the peer has opened."""
        return self._state.last_peer_stream

    @property
    def answered(self) -> int:
        """The number of streams that both ends have completed."""
        return self._state.answered
