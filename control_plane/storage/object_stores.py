"""Clients of folders and object stores by fsspec, with the provider's own chain of credentials (variables, files, roles): a
URL that holds some is refused. Used by the adapters of `models` and `jobs`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from fsspec.core import url_to_fs

from control_plane.core.errors import StartupError
from control_plane.core.text.redaction import without_secrets

_S3_OPTIONS = {"config_kwargs": {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 1}}}
_CLOSE_TIMEOUT_S = 1.0
_LONGEST_MESSAGE = 300


def open_object_store(url: str, *, setting: str) -> tuple[Any, str]:
    """Return fsspec's client for a URL and the root in it, without a request. Raises StartupError, which names `setting`."""
    parts, shown = urlsplit(url), without_secrets(url)
    if parts.username is not None or parts.password is not None or parts.query or "::" in url:
        raise StartupError(f"{setting} {shown}: leave credentials and options to the provider's own variables and files")
    try:
        options = _S3_OPTIONS if parts.scheme in ("s3", "s3a") else {}
        fs, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
    except ImportError as exc:
        extra = "; `make extras` installs what it needs" if parts.scheme in ("s3", "s3a") else ""
        raise StartupError(f"{setting} {shown} needs a package that is missing ({exc}){extra}") from exc
    except ValueError as exc:
        raise StartupError(f"{setting} {shown}: nothing here reads {parts.scheme}://") from exc
    return fs, str(root)


def close_object_store(fs: Any) -> None:
    """Close a client's connections, where the client has a way to."""
    if (session := getattr(fs, "_s3", None)) is not None:
        closing = asyncio.run_coroutine_threadsafe(session.__aexit__(None, None, None), fs.loop)
        with suppress(Exception):  # connections that stay open end with the process
            closing.result(_CLOSE_TIMEOUT_S)


def text_of_error(exc: Exception) -> str:
    """Return what a client has said, in one line that may be shown."""
    return without_secrets(" ".join(f"{type(exc).__name__}: {exc}".split()))[:_LONGEST_MESSAGE]
