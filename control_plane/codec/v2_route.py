"""Which call of the KServe v2 protocol (and Triton's extensions) a method and path mean; one table.

Triton does not percent-decode paths, so neither does this; what the table does not know is a 404.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from control_plane.domain.errors import MethodNotAllowed, RouteNotFound


class Action(Enum):
    """What is to be done with a call."""

    INFER = "infer"
    LIVE = "live"
    READY = "ready"
    READ = "read"
    """Answered by Triton as it is; changes nothing."""


@dataclass(frozen=True, slots=True)
class V2Route:
    action: Action
    model_name: str = ""
    model_version: str = ""


_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
_TABLE: tuple[tuple[re.Pattern[str], str, Action], ...] = (
    (re.compile(_MODEL + "/infer"), "POST", Action.INFER),
    (re.compile("/v2/health/live"), "GET", Action.LIVE),
    (re.compile("/v2/health/ready"), "GET", Action.READY),
    (re.compile("/v2"), "GET", Action.READ),
    (re.compile("/v2/models/stats"), "GET", Action.READ),
    (re.compile(_MODEL), "GET", Action.READ),
    (re.compile(_MODEL + "/(?:ready|config|stats)"), "GET", Action.READ),
    (re.compile("/v2/repository/index"), "POST", Action.READ),
)


@lru_cache(maxsize=4096)
def read_route(method: bytes, target: bytes) -> V2Route:
    """Match a request line's method and target.

    Raises:
        RouteNotFound: no such path. MethodNotAllowed: the path takes another method.
    """
    path = target.partition(b"?")[0].decode("latin-1")
    allowed = False
    for pattern, allowed_method, action in _TABLE:
        match = pattern.fullmatch(path)
        if match is None:
            continue
        if method == allowed_method.encode():
            groups = match.groupdict()
            return V2Route(action, groups.get("model") or "", groups.get("version") or "")
        allowed = True
    raise MethodNotAllowed("Method Not Allowed") if allowed else RouteNotFound("Not Found")
