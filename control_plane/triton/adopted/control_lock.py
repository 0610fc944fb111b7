"""Lock of Triton's calls for models (`--grpc-restricted-protocol`, `--http-restricted-api`): whether strangers may
list, load and unload there. Nothing says how a Triton was started, so it is asked for its index without a secret.
"""

from __future__ import annotations

from control_plane.core.endpoints import Endpoints
from control_plane.core.errors import ControlPlaneError, UpstreamUnavailable
from control_plane.protocols.http1 import HttpRequest
from control_plane.triton.adapters.control import ControlClient
from control_plane.triton.adapters.http.client import HttpClient

RESTRICTED = "is restricted, expecting header"
"""What Triton says to a call of a group that is locked by a secret, without it or with another one."""

_CALL_S = 10.0
_INDEX = HttpRequest(b"POST", b"/v2/repository/index")
_OK, _FORBIDDEN = 200, 403


async def flags_missing(endpoints: Endpoints, *, counts_silence: bool = True) -> list[str]:
    """Return the flags of Triton's that would lock what is open to strangers; a protocol that answers neither way
    counts as open, or not, as `counts_silence` says."""
    locked = {
        "--grpc-restricted-protocol": await _is_grpc_locked(endpoints),
        "--http-restricted-api": await _is_http_locked(endpoints),
    }
    return [flag for flag, is_locked in locked.items() if (is_locked is None and counts_silence) or is_locked is False]


async def _is_grpc_locked(endpoints: Endpoints) -> bool | None:
    stranger = ControlClient(endpoints.grpc)
    try:
        await stranger.index()
    except ControlPlaneError as exc:
        return True if RESTRICTED in str(exc) else None
    finally:
        await stranger.close()
    return False


async def _is_http_locked(endpoints: Endpoints) -> bool | None:
    stranger = HttpClient(endpoints.http, max_connections=1)
    try:
        answer = await stranger.send(_INDEX, timeout_s=_CALL_S)
    except UpstreamUnavailable as exc:
        return True if exc.is_not_sent else None  # nobody listens there
    except ControlPlaneError:
        return None
    finally:
        await stranger.close()
    if answer.status == _FORBIDDEN:
        return True
    return False if answer.status == _OK else None
