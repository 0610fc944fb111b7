"""`tidegate regions` against an admin API that answers what a test says."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from control_plane.cli import main

FAR = {
    "name": "us",
    "address": "us.example:443",
    "is_well": True,
    "reason": "",
    "round_trip_ms": 81.2,
    "full_for_s": 0.4,
    "sent": 9,
    "answered": 7,
    "refused": 2,
}
AWAY = FAR | {"name": "ap", "is_well": False, "reason": "it says nothing", "round_trip_ms": None, "full_for_s": 0.0}


@pytest.fixture
def url() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps([FAR, AWAY] if self.path == "/regions" else []).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_each_region_has_a_line(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["tidegate", "regions", "--admin-url", url])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        ["us", "us.example:443", "yes", "81.2", "ms", "0.4", "s", "9", "7", "2"],
        ["ap", "us.example:443", "no", "9", "7", "2", "it", "says", "nothing"],
    ]
