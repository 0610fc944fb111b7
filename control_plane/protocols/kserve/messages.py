"""Messages and calls of Triton's gRPC API, from the modules that tritonclient's wheel has for them.

Importing `tritonclient.grpc` itself runs its client, which imports numpy: 16 MiB of memory that a node has no
use for. The modules of messages need nothing of it, so here they are imported below a package without it. They
are the same modules for whoever imports `tritonclient.grpc` afterwards.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import tritonclient

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
else:
    _PACKAGE = "tritonclient.grpc"
    _is_imported = _PACKAGE in sys.modules
    if not _is_imported:
        _without_client = ModuleType(_PACKAGE)
        _without_client.__path__ = [str(Path(each, "grpc")) for each in tritonclient.__path__]
        sys.modules[_PACKAGE] = _without_client
    try:
        model_config_pb2, service_pb2, service_pb2_grpc = (
            import_module(f"{_PACKAGE}.{name}") for name in ("model_config_pb2", "service_pb2", "service_pb2_grpc")
        )
    finally:
        if not _is_imported:
            del sys.modules[_PACKAGE]

__all__ = ["model_config_pb2", "service_pb2", "service_pb2_grpc"]
