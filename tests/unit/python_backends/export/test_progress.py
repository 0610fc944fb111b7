"""Progress lines."""

from __future__ import annotations

import io
import re

import pytest

from python_backends.export.progress import Progress


def test_a_step_is_named_when_it_begins_and_timed_when_it_ends() -> None:
    stream = io.StringIO()

    with Progress(stream).step("export"):
        assert stream.getvalue() == "  export ... "

    assert re.fullmatch(r"  export \.\.\. \d+\.\d s\n", stream.getvalue())


def test_a_step_that_fails_ends_its_line() -> None:
    stream = io.StringIO()

    with pytest.raises(ValueError, match="no"), Progress(stream).step("export"):
        raise ValueError("no")

    assert stream.getvalue().endswith(" s\n")
