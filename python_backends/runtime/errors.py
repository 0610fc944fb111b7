"""Errors of the Python backends; `triton.py` has the only table from them to Triton's status codes.

BackendError
├── ConfigError         the model cannot be loaded: its configuration, its file and this machine do not match
├── RequestError        this request is wrong; the model works
├── RequestCancelled    the client has left; nobody reads the answer
├── RequestExpired      its time was over before it was computed
├── QueueFull           the queue is full; the same request may succeed later
├── Unavailable         it cannot be computed now; the same request may succeed later
└── ExecutionError      the model failed on a request that looked right
"""

from __future__ import annotations


class BackendError(Exception):
    """Root of what a backend raises on purpose; its text is shown to the caller."""


class ConfigError(BackendError):
    """The model cannot be loaded as it is configured."""


class RequestError(BackendError):
    """The request is wrong: its content cannot be used."""


class RequestCancelled(BackendError):
    """The client has cancelled the request."""


class RequestExpired(BackendError):
    """The request's time was over while it waited."""


class QueueFull(BackendError):
    """Too many rows wait for this instance."""


class Unavailable(BackendError):
    """The process that would compute the request is not running and cannot be started now."""


class ExecutionError(BackendError):
    """The model failed while it ran."""
