"""What another user of the machine can get at of a running Triton: run as root, becomes that user, and says it as JSON.

    python -I another_user.py USER FOLDER SHM_PREFIX PID...

Of the standard library only, and all of it imported before: the user may not read the interpreter's own files. PIDS are the gateway's
and everything's beneath it, FOLDER what they run in.
"""

from __future__ import annotations

import base64
import encodings.idna  # noqa: F401 - connecting needs it
import http.client
import json
import os
import pwd
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

MODEL = b"""
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
CONFIG = {"backend": "python", "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}], "output": []}
_SECRET = re.compile(r"--(?:http-restricted-api|grpc-restricted-protocol)=[^:]+:([^=]+)=(.*)")
_PORT = re.compile(r"--(?:http|grpc|metrics)-port=(\d+)")
_TIMEOUT_S = 10.0


def main(user: str, folder: str, shm_prefix: str, *pids: str) -> None:
    paths = [*sorted(Path(folder).rglob("*"))]
    sockets = [str(path) for path in paths if path.is_socket()]
    become(user)
    flags = [flag for pid in pids for flag in read(f"/proc/{pid}/cmdline").split("\0")]
    secrets = dict(found.groups() for flag in flags if (found := _SECRET.fullmatch(flag)))
    ports = [int(found[1]) for flag in flags if (found := _PORT.fullmatch(flag))]
    places = [*(("127.0.0.1", port) for port in ports), *sockets]
    regions = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if name.startswith(shm_prefix)]
    found = {
        "secrets": secrets,
        "sockets": sockets,
        "connected": [place for place in places if can_connect(place)],
        "loaded": [port for port in ports if loads(port, secrets)],
        "regions": regions,
        "regions_read": list(readable(regions)),
        "environments_read": list(readable(f"/proc/{pid}/environ" for pid in pids)),
        "files_read": list(readable(map(str, paths))),
    }
    sys.stdout.write(json.dumps(found))


def become(user: str) -> None:
    account = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def read(path: str) -> str:
    with suppress(OSError), open(path, errors="replace") as file:
        return file.read()
    return ""


def readable(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        with suppress(OSError), open(path, "rb") as file:
            file.read(1)
            yield path


def can_connect(place: tuple[str, int] | str) -> bool:
    with socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET) as connection:
        connection.settimeout(_TIMEOUT_S)
        try:
            connection.connect(place)
        except OSError:
            return False
        return True


def loads(port: int, secrets: dict[str, str]) -> bool:
    """Whether code of the user's own gets in."""
    files = {"config": json.dumps(CONFIG), "file:1/model.py": base64.b64encode(MODEL).decode()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", "/v2/repository/models/intruder/load", json.dumps({"parameters": files}), secrets)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
