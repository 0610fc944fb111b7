"""nginx for either protocol, with one worker: as a proxy with upstream keep-alive and all bodies in memory, or answering by itself."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from perf.servers.processes import free_port, program, running

_CONFIG = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  server_tokens off;
  tcp_nodelay on;
  keepalive_requests 1000000000;
  http2_max_concurrent_streams 1000;
  http2_recv_buffer_size 1m;
  http2_body_preread_size 2m;
  http2_chunk_size 64k;
  client_max_body_size 256m;
  client_body_buffer_size 2m;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream triton {{
    server {upstream};
    keepalive 256;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port}{options};
    location / {{
      {forward}
    }}
  }}
}}
"""
_FORWARD = {
    "http": """proxy_pass http://triton;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffers 16 128k;
      proxy_buffer_size 128k;
      proxy_busy_buffers_size 256k;
      proxy_max_temp_file_size 0;""",
    "grpc": """grpc_pass grpc://triton;
      grpc_buffer_size 128k;""",
}
_OPTIONS = {"http": "", "grpc": " http2"}
_NOBODY = "127.0.0.1:9"


def nginx(protocol: str, upstream: str) -> contextlib.AbstractContextManager[tuple[str, int]]:
    """A proxy: its address and the pid of its master process."""
    return _nginx(protocol, _FORWARD[protocol], upstream)


def answering_nginx(protocol: str, answer_bytes: int) -> contextlib.AbstractContextManager[tuple[str, int]]:
    """Start an nginx that answers every request with so many bytes and reads nothing of it."""
    return _nginx(protocol, f'default_type application/octet-stream; return 200 "{"x" * answer_bytes}";', _NOBODY)


@contextlib.contextmanager
def _nginx(protocol: str, location: str, upstream: str) -> Iterator[tuple[str, int]]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="tidegate-perf-") as name:
        config = Path(name, "nginx.conf")
        config.parent.chmod(0o755)  # the worker is another user where the master is root
        config.write_text(_CONFIG.format(folder=name, port=port, upstream=upstream, options=_OPTIONS[protocol], forward=location))
        with running([program("nginx") or "nginx", "-e", "stderr", "-c", str(config)], port) as pid:
            yield f"127.0.0.1:{port}", pid
