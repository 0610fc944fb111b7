from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.models.adapters.repository_lab import Lab

_NOBODY = 65534


@pytest.fixture
def place_of_nobody() -> Iterator[Path]:
    """Return a folder for a test that runs as an ordinary user, even if root runs the tests."""
    with tempfile.TemporaryDirectory() as folder:
        is_root = os.geteuid() == 0
        if is_root:
            os.chown(folder, _NOBODY, -1)
            os.seteuid(_NOBODY)
        try:
            yield Path(folder)
        finally:
            if is_root:
                os.seteuid(0)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)
