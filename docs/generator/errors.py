"""The reference's page of errors: the code, statuses and cause of each way in which the gateway refuses or fails."""

from __future__ import annotations

import re
from collections.abc import Iterator

from control_plane.core import errors
from control_plane.frontends.common.status import STATUS
from docs.generator.markdown import table, wrapped


def blocks() -> Iterator[str]:
    yield "# Errors"
    yield wrapped(
        "What the gateway itself refuses or fails with. Where Triton has a status for the same mistake it is Triton's; what Triton answers "
        "passes through as it is. `code` is what the admin API tells; a retry of the same request may succeed where that is said."
    )
    meanings = dict(re.findall(r"^ {8}(\w+) {2,}(.+)$", errors.__doc__ or "", re.MULTILINE))
    kinds = {kind.code: meanings[kind.__name__] for kind in _subclasses(errors.ControlPlaneError)}
    rows = [
        (f"`{code.value}`", str(status.http), status.grpc.name, "yes" if status.retryable else "", kinds[code])
        for code, status in STATUS.items()
    ]
    yield table(("code", "HTTP", "gRPC", "retry", "when"), rows)


def _subclasses(kind: type[errors.ControlPlaneError]) -> Iterator[type[errors.ControlPlaneError]]:
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
