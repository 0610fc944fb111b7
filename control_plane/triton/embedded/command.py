"""Command line of the embedded Triton: its flags with their reasons, its folders and endpoints. Numbers are
of server 24.10.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import secrets
import shutil
import socket
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from control_plane.core.endpoints import (
    CONTROL_FIELD,
    GRPC_SOCKET,
    GRPC_SOCKET_PORT,
    HTTP_SOCKET,
    METRICS_SOCKET,
    Endpoints,
    TritonEndpoints,
    TritonSockets,
)
from control_plane.core.errors import StartupError
from control_plane.host.network.exposure import is_loopback
from control_plane.protocols.header_forwarding import BACKGROUND_FIELD, TIME_LEFT_FIELD
from control_plane.settings import TritonSettings
from control_plane.triton.embedded.account import Account, grant_traversal
from control_plane.triton.embedded.installation import TritonInstallation

EXIT_TIMEOUT_S = 3
"""Time that Triton waits at its exit for requests in flight and idle connections; then it ends all
the same.
"""

_HTTP_THREADS, _MIN_HTTP_THREADS, _FILES_PER_HTTP_THREAD = 64, 8, 32
"""Triton's own default is 8; each thread takes three descriptors. A connection stays with one thread, which
parses bodies in turn, so that 4 MB of JSON (90 ms) hold up every eighth connection; with 32 threads the
HTTP p99 beside such a flood fell from 106 to 15 ms (`make perf-floods`)."""

_HOST = "127.0.0.1"
_NOT_FOR_OTHER_HOSTS = ("shared-memory", "trace", "logging")
"""Groups of Triton's calls that touch this machine's memory and files."""
_UNSAFE_IN_SHELL = re.compile(r"""[\s"'\\$`&|;<>()*?\[\]{}]""")


@dataclass(frozen=True, slots=True)
class TritonFolders:
    """Paths under `<state_dir>/triton`, all absolute."""

    root: Path

    @property
    def repository(self) -> Path:
        return self.root / "repository"

    @property
    def backends(self) -> Path:
        return self.root / "backends"

    @property
    def libraries(self) -> Path:
        return self.root / "lib"

    @property
    def imports(self) -> Path:
        """Folder of what stubs can import besides their environment's packages; it is their working
        directory.
        """
        return self.root / "imports"

    @property
    def sockets(self) -> Path:
        """Folder in which each start of Triton gets a folder of its own."""
        return self.root / "sockets"

    @property
    def log(self) -> Path:
        return self.root / "triton.log"

    @property
    def lock(self) -> Path:
        return self.root / "guardian.lock"


def triton_folders(state_dir: Path) -> TritonFolders:
    """Return the folders under `state_dir`.

    Raises:
        StartupError: the path has characters that break the shell command by which Triton starts a Python
            stub. Triton quotes nothing, and the load would hang for ever.
    """
    root = state_dir.absolute() / "triton"
    unsafe = _UNSAFE_IN_SHELL.search(str(root))
    if unsafe:
        raise StartupError(f"--state-dir {state_dir}: Triton cannot run Python models under a path with {unsafe[0]!r}; choose another")
    return TritonFolders(root)


def shm_prefix(root: Path) -> str:
    """Return the prefix of the names of this state folder's regions in /dev/shm; no other state folder has
    the same.

    Device and inode tell containers apart that share /dev/shm and use the same path.
    """
    identity = root.stat()
    digest = hashlib.sha256(f"{root}:{identity.st_dev}:{identity.st_ino}".encode()).hexdigest()
    return f"tidegate_{digest[:16]}_"


def make_sockets(folders: TritonFolders, account: Account | None = None) -> TritonSockets:
    """Make a folder for the sockets of one start, and a new secret; the guardian removes the folder. Only
    this user may enter it, or `account`.

    Folders that other processes left are removed: these processes and their guardians were killed.
    """
    folders.sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = f"{os.getpid()}."
    for left in folders.sockets.iterdir():
        if not left.name.startswith(own):
            shutil.rmtree(left, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=own, dir=folders.sockets)
    if account is not None:
        grant_traversal(account, [folders.sockets])
        os.chown(folder, account.uid, account.gid)
    return TritonSockets(folder, control_secret=secrets.token_hex(16))


def choose_ports() -> TritonEndpoints:
    """Choose three free ports and a new secret. If a port is taken before Triton binds it, the start fails
    and the next one chooses anew.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind((_HOST, 0))
        http, grpc, metrics = (int(each.getsockname()[1]) for each in sockets)
    return TritonEndpoints(host=_HOST, http_port=http, grpc_port=grpc, metrics_port=metrics, control_secret=secrets.token_hex(16))


def triton_command(
    installation: TritonInstallation,
    settings: TritonSettings,
    *,
    folders: TritonFolders,
    endpoints: Endpoints,
    config_name: str,
    header_forward_pattern: str = "",
) -> list[str]:
    """Return the program and its flags; an empty `config_name` is the plain config.pbtxt.

    Triton's own response cache stays off: its key ignores shapes.
    """
    return [
        str(installation.binary),
        f"--model-repository={folders.repository}",
        f"--backend-directory={folders.backends}",
        "--model-control-mode=explicit",
        # Strict readiness would make the whole server "not ready" while one model loads, and for good once
        # one has failed.
        "--strict-readiness=false",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        "--log-format=ISO8601",
        *_endpoint_flags(endpoints, folders),
        f"--http-thread-count={http_threads(resource.getrlimit(resource.RLIMIT_NOFILE)[0])}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix(folders.root)}",
        # A stub's initialize() is part of the load, whose limit is ours: Triton's default of 30 s would end
        # long ones before.
        f"--backend-config=python,stub-timeout-seconds={max(1, round(settings.load_timeout_s))}",
        *([f"--model-config-name={config_name}"] if config_name else []),
        *_header_flags(header_forward_pattern),
        *(_host_policy(settings.model_cpus) if settings.model_cpus else []),
        *(_control_flags(endpoints) if endpoints.control_secret else []),
        *settings.triton_arg,
    ]


def http_threads(open_files: int) -> int:
    """Number of Triton's HTTP threads for so many descriptors (-1: no limit), which it inherits from us."""
    return _HTTP_THREADS if open_files < 0 else min(_HTTP_THREADS, max(_MIN_HTTP_THREADS, open_files // _FILES_PER_HTTP_THREAD))


def _endpoint_flags(endpoints: Endpoints, folders: TritonFolders) -> list[str]:
    """Return the flags for the endpoints, which should be reachable for this user alone: whoever reaches
    Triton can make it run code (CVE-2025-23319, and by design).
    """
    if isinstance(endpoints, TritonEndpoints):
        addresses = dict.fromkeys(("http", "grpc", "metrics"), endpoints.host)
        ports = {"http": endpoints.http_port, "grpc": endpoints.grpc_port, "metrics": endpoints.metrics_port}
    else:
        # Relative to Triton's working directory, since the path of a Unix socket has at most 107 bytes.
        folder = os.path.relpath(endpoints.folder, folders.imports)
        files = {"http": HTTP_SOCKET, "grpc": GRPC_SOCKET, "metrics": METRICS_SOCKET}
        addresses = {name: f"unix:{folder}/{file}" for name, file in files.items()}
        ports = {"grpc": GRPC_SOCKET_PORT}  # Triton ignores the ports of the others
    return [f"--{name}-address={value}" for name, value in addresses.items()] + [f"--{name}-port={value}" for name, value in ports.items()]


def _header_flags(pattern: str) -> list[str]:
    """Return the flags by which headers that match the pattern become parameters, beside the gateway's own; case is ignored,
    as in HTTP.
    """
    own = [f"^{field.decode()}$" for field in (BACKGROUND_FIELD, TIME_LEFT_FIELD)]
    patterns = "|".join(filter(None, (*own, pattern)))
    return [f"--{api}-header-forward-pattern=(?i){patterns}" for api in ("http", "grpc")]


def _control_flags(endpoints: Endpoints) -> list[str]:
    """Return the flags that restrict model control to callers with the secret, so that it is known what is
    loaded; on ports that other hosts reach also what else no inference needs.

    On sockets and loopback this prevents mistakes, not attacks: other users of the machine see these flags but
    cannot connect, and whoever can connect is this user, who may do everything anyway.
    """
    is_exposed = isinstance(endpoints, TritonEndpoints) and not is_loopback(endpoints.host)
    locked = ",".join(("model-repository", *(_NOT_FOR_OTHER_HOSTS if is_exposed else ())))
    return [f"--{flag}={locked}:{CONTROL_FIELD}={endpoints.control_secret}" for flag in ("http-restricted-api", "grpc-restricted-protocol")]


def _host_policy(cpus: Sequence[int]) -> list[str]:
    """Return the flags that pin instances of kind CPU. Without a NUMA node, here the first CPU's, Triton
    silently pins nothing.
    """
    node = next(iter(Path(f"/sys/devices/system/cpu/cpu{cpus[0]}").glob("node[0-9]*")), Path("node0")).name.removeprefix("node")
    return [f"--host-policy=cpu,numa-node={node}", f"--host-policy=cpu,cpu-cores={cpus[0]}-{cpus[-1]}"]
