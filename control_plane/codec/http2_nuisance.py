"""How much of what an HTTP/2 peer sends costs work and asks for nothing."""

from __future__ import annotations

from control_plane.codec.http2_frames import Code, Http2Error

_LIMIT = 5000
_PER_ANSWER = 10
_PER_CALM = 10


class Nuisance:
    """Leaky bucket of the frames by which a peer costs work and asks for nothing: pings, resets, settings and the like."""

    __slots__ = ("_is_counted", "level")

    def __init__(self, *, is_counted: bool) -> None:
        self._is_counted = is_counted
        self.level = 0

    def count(self) -> None:
        """One more such frame. Raises Http2Error when it is one too many."""
        self.level += 1
        if self.level > _LIMIT and self._is_counted:
            raise Http2Error("too many frames that ask for nothing", Code.ENHANCE_YOUR_CALM)

    def forgive_frame(self) -> None:
        """A frame with data has come or gone."""
        if self.level:
            self.level -= 1

    def forgive_answer(self) -> None:
        """A stream has ended well."""
        if self.level:
            self.level = max(0, self.level - _PER_ANSWER)

    def calm(self) -> None:
        """About a second has passed: what comes slowly, such as a keep-alive's pings, is no nuisance."""
        self.level = max(0, self.level - _PER_CALM)
