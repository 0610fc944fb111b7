"""Triton's flags: why each is what it is, in one place. Numbers are of server 24.10."""

from __future__ import annotations

import hashlib
import os
import re
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
from control_plane.settings import TritonSettings
from control_plane.triton.embedded.account import Account, let_through
from control_plane.triton.embedded.installation import TritonInstallation

EXIT_TIMEOUT_S = 3
"""Triton's own patience with requests in flight and idle connections at its exit; after it, it ends by itself."""

_HOST = "127.0.0.1"
_UNSAFE_IN_SHELL = re.compile(r"""[\s"'\\$`&|;<>()*?\[\]{}]""")


@dataclass(frozen=True, slots=True)
class TritonFolders:
    """What lies under `<state_dir>/triton`; all paths absolute."""

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
        """What stubs can import besides their environment's packages: it is their working directory."""
        return self.root / "imports"

    @property
    def sockets(self) -> Path:
        """Each life has a folder of its own there."""
        return self.root / "sockets"

    @property
    def log(self) -> Path:
        return self.root / "triton.log"

    @property
    def lock(self) -> Path:
        return self.root / "guardian.lock"


def triton_folders(state_dir: Path) -> TritonFolders:
    """The folders under `state_dir`.

    Raises:
        StartupError: the path has characters that break the shell command by which Triton starts a Python stub: it
            quotes nothing, and the load would hang for ever.
    """
    root = state_dir.absolute() / "triton"
    unsafe = _UNSAFE_IN_SHELL.search(str(root))
    if unsafe:
        raise StartupError(f"--state-dir {state_dir}: Triton cannot run Python models under a path with {unsafe[0]!r}; choose another")
    return TritonFolders(root)


def shm_prefix(root: Path) -> str:
    """The start of the names of this state folder's regions in /dev/shm; no other folder's begins with it.

    Device and inode tell containers apart that share /dev/shm and use the same path.
    """
    identity = root.stat()
    digest = hashlib.sha256(f"{root}:{identity.st_dev}:{identity.st_ino}".encode()).hexdigest()
    return f"tidegate_{digest[:16]}_"


def make_sockets(folders: TritonFolders, account: Account | None = None) -> TritonSockets:
    """A folder for the sockets of one life, and a new secret; the guardian removes it. Only this user may enter it, or `account`.

    Also removes what lives of other processes have left there: they and their guardians were killed.
    """
    folders.sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = f"{os.getpid()}."
    for left in folders.sockets.iterdir():
        if not left.name.startswith(own):
            shutil.rmtree(left, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=own, dir=folders.sockets)
    if account is not None:
        let_through(account, [folders.sockets])
        os.chown(folder, account.uid, account.gid)
    return TritonSockets(folder, control_secret=secrets.token_hex(16))


def choose_ports() -> TritonEndpoints:
    """Three ports free now, and a new secret; where one is taken before Triton binds it, that start fails and the next chooses anew."""
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
    """Program and flags; an empty `config_name` is the plain config.pbtxt. No response cache: its key ignores shapes."""
    return [
        str(installation.binary),
        f"--model-repository={folders.repository}",
        f"--backend-directory={folders.backends}",
        "--model-control-mode=explicit",
        # Strict, one failed or loading model makes the whole server "not ready", for good.
        "--strict-readiness=false",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        "--log-format=ISO8601",
        *_listening(endpoints, folders),
        f"--backend-config=python,shm-region-prefix-name={shm_prefix(folders.root)}",
        # A stub's initialize() is part of the load; Triton's 30 s would end long ones first.
        f"--backend-config=python,stub-timeout-seconds={max(1, round(settings.load_timeout_s))}",
        *([f"--model-config-name={config_name}"] if config_name else []),
        *(_host_policy(settings.model_cpus) if settings.model_cpus else []),
        *(_forward(header_forward_pattern) if header_forward_pattern else []),
        *(_lock(endpoints.control_secret) if endpoints.control_secret else []),
        *settings.triton_arg,
    ]


def _listening(endpoints: Endpoints, folders: TritonFolders) -> list[str]:
    """Where this user alone gets: whoever reaches Triton can have it run code (CVE-2025-23319 and by design)."""
    if isinstance(endpoints, TritonEndpoints):
        addresses = dict.fromkeys(("http", "grpc", "metrics"), endpoints.host)
        ports = {"http": endpoints.http_port, "grpc": endpoints.grpc_port, "metrics": endpoints.metrics_port}
    else:
        # From its working directory, since a path may have 107 bytes only.
        folder = os.path.relpath(endpoints.folder, folders.imports)
        files = {"http": HTTP_SOCKET, "grpc": GRPC_SOCKET, "metrics": METRICS_SOCKET}
        addresses = {name: f"unix:{folder}/{file}" for name, file in files.items()}
        ports = {"grpc": GRPC_SOCKET_PORT}  # the others' are ignored
    return [f"--{name}-address={value}" for name, value in addresses.items()] + [f"--{name}-port={value}" for name, value in ports.items()]


def _forward(pattern: str) -> list[str]:
    """What the gateway sends on by this pattern become parameters; it does not tell upper from lower case, nor does HTTP."""
    return [f"--{api}-header-forward-pattern=(?i){pattern}" for api in ("http", "grpc")]


def _lock(secret: str) -> list[str]:
    """Nobody else loads: what is loaded is known then. Against mistakes, not attackers: other users of the machine see these flags, but
    cannot connect; who can is this user, and may do everything anyway."""
    return [f"--{api}=model-repository:{CONTROL_FIELD}={secret}" for api in ("http-restricted-api", "grpc-restricted-protocol")]


def _host_policy(cpus: Sequence[int]) -> list[str]:
    """For instances of kind CPU. Triton pins nothing, silently, unless the policy names a NUMA node as well: the first CPU's."""
    node = next(iter(Path(f"/sys/devices/system/cpu/cpu{cpus[0]}").glob("node[0-9]*")), Path("node0")).name.removeprefix("node")
    return [f"--host-policy=cpu,numa-node={node}", f"--host-policy=cpu,cpu-cores={cpus[0]}-{cpus[-1]}"]
