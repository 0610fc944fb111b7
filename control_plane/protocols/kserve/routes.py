"""URL routing: one table from method and path to an `Action`, for KServe v2, Triton's extensions and OpenAI's
API.

Triton does not percent-decode paths, so neither does this; a path that is not in the table is a 404. Paths
and methods are those of Triton 2.51, found by trying them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from control_plane.core.action import Action
from control_plane.core.errors import InvalidRequest, MethodNotAllowed, ModelNotFound, RouteNotFound
from control_plane.core.model import check_reference

ADMINISTRATORS_ONLY = frozenset((Action.INDEX, Action.LOAD, Action.UNLOAD, Action.ADMIN, Action.SHARED_MEMORY, Action.COMPUTE_JOB))

OF_JOBS = frozenset(
    (Action.SUBMIT_JOB, Action.LIST_JOBS, Action.READ_JOB, Action.JOB_RESULT, Action.JOB_EVENTS, Action.CANCEL_JOB, Action.COMPUTE_JOB)
)


@dataclass(frozen=True, slots=True)
class V2Route:
    """Parsed target of a request: the action, and the model and version that the path names."""

    action: Action
    model_name: str = ""
    model_version: str = ""
    job_id: str = ""
    """The job that the path names, which may be none that exists."""
    allowed: tuple[str, ...] = ()
    """The methods that the path accepts; set for OPTIONS only."""


_AUTHORITY = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
"""The scheme and host of a request target in absolute form, which a server must accept (RFC 9112, 3.2.2)."""

_KEPT_BYTES = 512
"""Longest target that is remembered once it was rewritten: 4096 of them, with what they became, take 4 MiB at most."""
_AFTER_MODEL = re.compile(rb"\A/v2/models/[^/?]+(?:/versions/[0-9]+)?")
_NO_FIRST_PROTOCOL = "KServe's v1 protocol is not served; send POST /v2/models/NAME/infer, as its v2 protocol has it"
_FIRST_PROTOCOL = re.compile("/v1/models/[^/]+:(?:predict|explain)")
_NO_SUCH_CALL = (
    "there is no such call here: of OpenAI's API there are /v1/embeddings, /v1/completions, /v1/chat/completions, /v1/models, "
    "/v1/files and /v1/batches"
)

_MODEL = "/v2/models/(?P<model>[^/]+)"
_VERSION = _MODEL + "(?:/versions/(?P<version>[0-9]+))?"
_REPOSITORY = "/v2/repository/models/(?P<model>[^/]+)"
_JOB = "/v2/jobs/(?P<job>[^/]+)"
_MEMORY = "/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?"
_TABLE: tuple[tuple[re.Pattern[str], dict[str, Action]], ...] = tuple(
    (re.compile(path), actions)
    for path, actions in (
        (_VERSION + "/infer", {"POST": Action.INFER}),
        (_VERSION + "/generate(?:_stream)?", {"POST": Action.GENERATE}),
        (_VERSION + "/jobs", {"POST": Action.SUBMIT_JOB}),
        ("/v2/jobs", {"GET": Action.LIST_JOBS}),
        (_JOB, {"GET": Action.READ_JOB, "DELETE": Action.CANCEL_JOB}),
        (_JOB + "/result", {"GET": Action.JOB_RESULT}),
        (_JOB + "/events", {"GET": Action.JOB_EVENTS}),
        (_JOB + "/compute", {"POST": Action.COMPUTE_JOB}),
        ("/v2/events", {"GET": Action.EVENTS}),
        ("/v2/health/live", {"GET": Action.LIVE}),
        ("/v2/health/ready", {"GET": Action.READY}),
        ("/v2", {"GET": Action.READ}),
        ("/v2/models/stats", {"GET": Action.STATISTICS}),
        (_VERSION, {"GET": Action.READ}),
        (_VERSION + "/config", {"GET": Action.READ}),
        (_VERSION + "/ready", {"GET": Action.MODEL_READY}),
        (_VERSION + "/stats", {"GET": Action.STATISTICS}),
        ("/v2/repository(?:/[^/]+)?/index", {"POST": Action.INDEX}),  # Triton lists all models, whichever repository is named
        (_REPOSITORY + "/load", {"POST": Action.LOAD}),
        (_REPOSITORY + "/unload", {"POST": Action.UNLOAD}),
        ("/v2/repository/[^/]+/models/(?P<model>[^/]+)/(?:load|unload)", {"POST": Action.ADMIN}),  # Triton answers: unsupported
        (f"(?:/v2|{_MODEL})/trace/setting", {"GET": Action.ADMIN, "POST": Action.ADMIN}),
        ("/v2/logging", {"GET": Action.ADMIN, "POST": Action.ADMIN}),
        ("/v1/embeddings", {"POST": Action.EMBED}),
        ("/v1/completions", {"POST": Action.COMPLETE}),
        ("/v1/chat/completions", {"POST": Action.CHAT}),
        ("/v1/files", {"GET": Action.FILES, "POST": Action.FILES}),
        ("/v1/files/[^/]+", {"GET": Action.FILES, "DELETE": Action.FILES}),
        ("/v1/files/[^/]+/content", {"GET": Action.FILES}),
        ("/v1/batches", {"GET": Action.BATCHES, "POST": Action.BATCHES}),
        ("/v1/batches/[^/]+", {"GET": Action.BATCHES}),
        ("/v1/batches/[^/]+/cancel", {"POST": Action.BATCHES}),
        ("/v1/models(?:/(?P<model>[^/]+))?", {"GET": Action.LIST_MODELS}),
        (_MEMORY + "/status", {"GET": Action.SHARED_MEMORY}),
        (_MEMORY + "/(?:register|unregister)", {"POST": Action.SHARED_MEMORY}),
    )
)


def target_for(target: bytes, model_name: str, model_version: str) -> bytes:
    """Rewrite a target that names a model so that it names another one."""
    return (_known_target_for if len(target) <= _KEPT_BYTES else _target_for)(target, model_name, model_version)


def _target_for(target: bytes, model_name: str, model_version: str) -> bytes:
    rest = _AFTER_MODEL.sub(b"", target, count=1)
    version = b"/versions/%b" % model_version.encode() if model_version else b""
    return b"/v2/models/%b%b%b" % (model_name.encode(), version, rest)


_known_target_for = lru_cache(maxsize=4096)(_target_for)


def is_openai(target: bytes) -> bool:
    """Whether answers to this target, errors included, take OpenAI's form."""
    return target.startswith(b"/v1/")


def authority_in(target: bytes) -> bytes | None:
    """The host and port in a target of absolute form; None for a plain path."""
    if target.startswith(b"/"):  # as nearly all do: takes no longer than a cache, which a caller's long targets would fill
        return None
    found = _AUTHORITY.match(target)
    return None if found is None else found.group(1)


def origin_form(target: bytes) -> bytes:
    """The path and query of a target of absolute form, which is all that a server behind this one is sent (RFC 9112, 3.2.1): of
    a host that it cannot read Triton closes the connection, as if it had died."""
    if target.startswith(b"/"):
        return target
    found = _AUTHORITY.match(target)
    if found is None or not found.group(1):
        return target
    path = target[found.end() :]
    return path if path.startswith(b"/") else b"/" + path


@lru_cache(maxsize=1024)
def read_route(method: bytes, target: bytes) -> V2Route:
    """Route a request line's method and target; HEAD is routed as GET.

    Raises:
        RouteNotFound: no such path.
        MethodNotAllowed: the path accepts other methods.
        InvalidRequest, in OpenAI's API ModelNotFound: no model can have the name or version in the path.
    """
    path = target.partition(b"?")[0].decode("latin-1")
    # A fragment is no part of a request target (RFC 9112, 3.2), and Triton might see another model's name
    # than we do.
    if "#" in path:
        raise RouteNotFound("Not Found")
    verb = method.decode("latin-1")
    if (verb, path) == ("OPTIONS", "*"):
        return V2Route(Action.OPTIONS, allowed=("GET", "HEAD", "OPTIONS", "POST"))
    if verb == "POST" and _FIRST_PROTOCOL.fullmatch(path):
        raise RouteNotFound(_NO_FIRST_PROTOCOL)
    for pattern, actions in _TABLE:
        match = pattern.fullmatch(path)
        if match is not None:
            return _choose(verb, actions, match.groupdict())
    raise RouteNotFound(_NO_SUCH_CALL if path.startswith("/v1/") else "Not Found")


def _choose(verb: str, actions: dict[str, Action], groups: dict[str, str | None]) -> V2Route:
    allowed = tuple(sorted({*actions, "OPTIONS", *(["HEAD"] if "GET" in actions else [])}))
    if verb == "OPTIONS":
        return V2Route(Action.OPTIONS, allowed=allowed)
    action = actions.get("GET" if verb == "HEAD" else verb)
    if action is None:
        raise MethodNotAllowed("Method Not Allowed", allowed=allowed)
    name, version = groups.get("model") or "", groups.get("version") or ""
    _check(action, name, version)
    return V2Route(action, name, version, groups.get("job") or "")


def _check(action: Action, name: str, version: str) -> None:
    """Check the name and version in the path, before any other code uses them."""
    try:
        check_reference(name, version)
    except InvalidRequest as exc:
        if action is Action.LIST_MODELS:  # OpenAI's clients know only "not found" as the answer to a bad name
            raise ModelNotFound(f"the model does not exist: {exc}") from exc
        raise
