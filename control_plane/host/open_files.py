"""The limit of open file descriptors: each connection takes one, and the usual soft limit is 1024."""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)


def allow_open_files(needed: int) -> int:
    """Raise the soft limit to `needed`, or to the hard limit; return how many may be used. Child processes
    inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < needed:
        _log.warning(
            "only %d files can be open at a time (ulimit -n), fewer than the %d that TIDEGATE_MAX_CONNECTIONS and "
            "TIDEGATE_MAX_UPSTREAM_CONNECTIONS may need: ports take fewer connections",
            max(soft, allowed),
            needed,
        )
    return max(soft, allowed)
