"""Parses the user's further `tritonserver` flags, and refuses those that a setting of ours controls.

Triton itself checks the other flags when it starts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

_FLAG = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?", re.DOTALL)

_REPOSITORY = "models come from --model-repository and --model-store"
_LOADING = "models are loaded by --load and `tidegate models load`"
_LISTENING = "--triton-transport says how Triton is reached, and --http-port, --grpc-port and --metrics-port where the gateway is"
_TLS = "TLS is the gateway's: --tls-certificate and --tls-key"
_LOCK = "TIDEGATE_LOCK_MODEL_CONTROL says whether others may load models"
_LOG = "Triton's log is triton/triton.log in the state folder, and the gateway relies on its format"
_CACHE = "Triton's own cache confuses shapes and outlives reloads; the gateway caches responses: --cache-bytes"
_FORWARDING = "--header-forward-pattern sets both, and makes forwarded headers part of the cache key"
_NO_MORE_PORTS = "it would open a port that everybody may use; clients connect to the gateway"

_REFUSED_FLAGS: Mapping[str, str] = {
    **dict.fromkeys(("model-repository", "model-store", "model-namespacing"), _REPOSITORY),
    **dict.fromkeys(("model-control-mode", "load-model", "repository-poll-secs"), _LOADING),
    **dict.fromkeys(
        (
            *(f"{frontend}-{what}" for frontend in ("http", "grpc", "metrics") for what in ("address", "port")),
            *("allow-http", "allow-grpc", "allow-metrics", "reuse-http-port", "reuse-grpc-port"),
        ),
        _LISTENING,
    ),
    **dict.fromkeys(("grpc-use-ssl", "grpc-use-ssl-mutual", "grpc-server-cert", "grpc-server-key", "grpc-root-cert"), _TLS),
    **dict.fromkeys(("http-restricted-api", "grpc-restricted-protocol"), _LOCK),
    **dict.fromkeys(("log-file", "log-format"), _LOG),
    **dict.fromkeys(("allow-sagemaker", "sagemaker-port", "sagemaker-safe-port-range", "sagemaker-thread-count"), _NO_MORE_PORTS),
    **dict.fromkeys(("allow-vertex-ai", "vertex-ai-port", "vertex-ai-thread-count", "vertex-ai-default-model"), _NO_MORE_PORTS),
    **dict.fromkeys(("http-header-forward-pattern", "grpc-header-forward-pattern"), _FORWARDING),
    "backend-directory": "TIDEGATE_PYTHON_BACKENDS names the folder of Python-based backends",
    "model-config-name": "TIDEGATE_MODEL_CONFIG_NAME chooses it",
    "strict-readiness": "with it one model that fails makes the whole server not ready",
    "exit-timeout-secs": "TIDEGATE_DRAIN_TIMEOUT_S says how long requests may go on",
    **dict.fromkeys(("cache-config", "response-cache-byte-size"), _CACHE),
}
"""Refused flag -> what to use instead, or why it must not be set."""

_REFUSED_FLAG_VALUES: tuple[tuple[str, str, str], ...] = (
    ("backend-config", "python,shm-region-prefix-name=", "what a killed Triton leaves behind is found by this prefix"),
    ("backend-config", "python,stub-timeout-seconds=", "TIDEGATE_LOAD_TIMEOUT_S says how long a load may take"),
    ("host-policy", "cpu,", "--model-cpus sets it"),
)
"""Flags that are refused only where their value starts with the given text: (flag, start of the value,
reason)."""


def _split(value: object) -> object:
    """Split a variable's value the way a shell does: flags are separated by blanks, since they may contain
    commas.
    """
    return shlex.split(value) if isinstance(value, str) else value


def _require_allowed_flag(flag: str) -> str:
    found = _FLAG.fullmatch(flag)
    if found is None:
        raise ValueError(f"{flag!r} is not a flag of Triton; write --NAME=VALUE, such as --rate-limit=execution_count")
    name, value = found[1], found[2] or ""
    parts = (why for ours, begins, why in _REFUSED_FLAG_VALUES if name == ours and value.startswith(begins))
    reason = _REFUSED_FLAGS.get(name) or next(parts, None)
    if reason is not None:
        raise ValueError(f"--{name} must not be set: {reason}")
    return flag


TritonArgs = Annotated[list[Annotated[str, AfterValidator(_require_allowed_flag)]], NoDecode, BeforeValidator(_split)]
