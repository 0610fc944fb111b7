"""HTTP server on a thread, whose answers a test says: for clients of ours, and for what others would tell them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any


class AskedRequest(BaseHTTPRequestHandler):
    """Request that has come whole, to be answered; one that is not answered ends with its connection."""

    body = b""

    def answer(self, status: int, content: Any = b"", **fields: str) -> None:
        """Answer with bytes as they are, or anything else as JSON; `fields` are header fields, `_` stands for `-`."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (("content_length", str(len(body))), *fields.items()):
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def http_server(answer: Callable[[AskedRequest], object]) -> Iterator[str]:
    """URL of a server on a port of its own that has each request answered by this function, each on a thread."""

    class Handler(AskedRequest):
        def handle_request(self) -> None:
            self.body = self.rfile.read(int(self.headers.get("content-length", 0)))
            answer(self)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request  # noqa: N815 - the library's names

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """Have a server serve on a thread within the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
