from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.cli import main


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    """As they were: the command sets them for its process."""
    ours = logging.getLogger("control_plane")
    handlers, levels = logging.root.handlers[:], (logging.root.level, ours.level)
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_password_in_the_url_of_a_triton_is_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, log_format: str
) -> None:
    url = "http://admin:hun,ter2@127.0.0.1:1"
    monkeypatch.setattr(sys, "argv", ["tidegate", "serve", "--triton-url", url, "--state-dir", str(tmp_path), "--log-format", log_format])
    with pytest.raises(SystemExit):
        main()
    told = "".join(capsys.readouterr())
    assert "attaching to the Triton at http://...@127.0.0.1:1 ..." in told
    assert "--triton-url 'http://...@127.0.0.1:1': expected http://HOST" in " ".join(told.split())
    assert not any(part in told for part in ("admin", "hun", "ter2"))


def test_commands_begin_without_what_only_a_gateway_needs() -> None:
    """Half of what a command took on a slow machine was reading these."""
    program = "import sys, control_plane.cli; print(*({'fastapi', 'redis', 'uvicorn', 'control_plane.app'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "\n"
