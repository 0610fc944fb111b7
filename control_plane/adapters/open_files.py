"""How many files and sockets this process may have open: each connection is one, and the usual soft limit is 1024."""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)

_OTHERWISE = 256
"""For everything that is no connection of a client or to Triton: libraries, logs, pipes, listening sockets."""


def allow_open_files(connections: int) -> None:
    """Raise the soft limit to what so many connections need, as far as the hard limit goes; it is inherited by what we start."""
    needed = connections + _OTHERWISE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < needed:
        _log.warning("only %d files can be open at a time (ulimit -n), fewer than TIDEGATE_MAX_CONNECTIONS may need: %d", allowed, needed)
