"""Launcher of the embedded Triton: implements `triton/ports.TritonLauncher` and `triton/ports.TritonProcess`
for the supervisor.

The process that it starts is a guardian (guardian.py), which starts Triton. So no process of Triton outlives
this one, even if this one is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from control_plane.core.endpoints import Endpoints, TritonEndpoints, TritonSockets
from control_plane.core.errors import StartupError
from control_plane.core.held_memory import HeldMemory
from control_plane.core.text.cpus import format_cpus
from control_plane.host.memory.server_memory import ServerMemory
from control_plane.settings import TritonSettings
from control_plane.triton.config_name import config_name_in_force
from control_plane.triton.embedded import confine, guardian
from control_plane.triton.embedded.account import find_account, grant_traversal, require_reach
from control_plane.triton.embedded.backend_directory import assemble_backends, assemble_imports
from control_plane.triton.embedded.command import choose_ports, make_sockets, shm_prefix, triton_command, triton_folders
from control_plane.triton.embedded.environment import require_bash, triton_environment
from control_plane.triton.embedded.installation import TritonInstallation, ensure_installed, own_installation
from control_plane.triton.embedded.known_flags import known_flags, of_this_version, require_known, require_ours
from control_plane.triton.embedded.log_file import LogFile, open_log
from control_plane.triton.embedded.shared_libraries import link_libpython, require_loadable
from control_plane.triton.embedded.stub_python import has_our_python
from control_plane.triton.embedded.watchdogs.load_watch import AbandonedLoadAnswerer, Answer, LoadWatch
from control_plane.triton.embedded.watchdogs.stub_watch import StubWatch
from control_plane.triton.embedded.watchdogs.stubs import Stubs, signal_name
from control_plane.triton.embedded.watchdogs.watched import WatchedTriton, Watches
from control_plane.triton.embedded.watchdogs.work_done import work_of

_KILL_MARGIN_S = 0.5
"""Part of a stop's grace that is left to the guardian, to kill and reap what did not end in time."""


@dataclass(frozen=True, slots=True)
class _Launch:
    """All that a start of Triton needs."""

    command: list[str]
    environment: dict[str, str]
    endpoints: Endpoints


class EmbeddedTritonLauncher(WatchedTriton):
    """Launcher of Tritons for one state folder, one at a time: a new one waits until the guardian of the last
    has cleaned up.
    """

    again = "restarted"

    def __init__(
        self,
        settings: TritonSettings,
        state_dir: Path,
        *,
        cpus: Sequence[int] = (),
        header_forward_pattern: str = "",
        environment: Mapping[str, str] = os.environ,
        choose: Callable[[], TritonEndpoints] = choose_ports,
        within: Sequence[Path] = (),
        memory: ServerMemory | None = None,
    ) -> None:
        """`cpus` are those that Triton and its stubs run on, by default those of this process. Triton
        inherits from `environment`. `choose` chooses the ports for the transport `tcp`. `within` are folders
        of ours that contain the state folder. `memory` weighs Triton's processes.

        Raises StartupError: the state folder cannot be used, or there is no user that Triton could run as.
        """
        super().__init__()
        self._settings = settings
        self._cpus = cpus
        self._header_forward_pattern = header_forward_pattern
        self._environment = environment
        self._choose = choose
        self._account = find_account(settings.triton_user) if settings.triton_user else None
        self._folders = triton_folders(state_dir)
        self._above = (*within, state_dir.absolute())
        self._memory = memory or ServerMemory()
        self._preparing = threading.Lock()

    async def start(self) -> EmbeddedTriton:
        """Start a Triton on sockets or ports of its own; it is not live when this returns.

        The first start unpacks the wheel, in a thread. A cancellation leaves no process running.

        Raises:
            StartupError: Triton cannot run on this machine, or its folders cannot be written.
        """
        try:
            launch = await asyncio.to_thread(self._prepare_alone)
            return await self._launch(launch)
        except OSError as exc:
            raise StartupError(f"cannot start Triton in {self._folders.root}: {exc}") from exc

    async def _launch(self, launch: _Launch) -> EmbeddedTriton:
        """Start the guardian, which starts Triton."""
        log, output = open_log(self._folders.log)
        with output:
            process = await asyncio.create_subprocess_exec(
                *self._guarded(launch),
                stdin=PIPE,
                stdout=output,
                stderr=STDOUT,
                env=launch.environment,
                cwd=self._folders.imports,
                start_new_session=True,
            )
        answer = AbandonedLoadAnswerer(launch.environment, self._account)
        triton = EmbeddedTriton(process, launch.endpoints, log, shm_prefix(self._folders.root), answer, self._memory)
        self.watches = Watches(triton.loads, triton.stubs)
        return triton

    def _prepare_alone(self) -> _Launch:
        # One at a time: the thread of a start that was cancelled runs on to its end.
        with self._preparing:
            return self._prepare()

    def _prepare(self) -> _Launch:
        """Check this machine, prepare Triton's folders, and return what its start needs. Blocks; run in a
        thread.
        """
        settings, folders = self._settings, self._folders
        own = settings.tritonserver
        installation = ensure_installed(settings.cache_dir.absolute()) if own is None else own_installation(own.absolute())
        python_backends = settings.python_backends.absolute()
        folders.repository.mkdir(parents=True, exist_ok=True)
        self._close_to_others()
        others = installation.backends if installation.is_own else None
        assemble_backends(folders.backends, python_backend=installation.python_backend, python_backends=python_backends, others=others)
        assemble_imports(folders.imports, python_backends)
        link_libpython(folders.libraries)
        environment = self._environment_of(installation)
        if self._account is not None:
            environment |= self._account.environment
            require_reach(self._account, self._read_by_triton(installation), environment)
        endpoints = self._choose() if settings.triton_transport == "tcp" else make_sockets(folders, self._account)
        if not settings.lock_model_control:
            endpoints = replace(endpoints, control_secret="")
        command = triton_command(
            installation,
            settings,
            folders=folders,
            endpoints=endpoints,
            config_name=config_name_in_force(settings.model_config_name),
            header_forward_pattern=self._header_forward_pattern,
        )
        if settings.triton_arg or installation.is_own:
            known = known_flags(installation.binary, environment)
            require_known(settings.triton_arg, known)
            if installation.is_own:
                require_ours(command, known)
            command += of_this_version(known)
        return _Launch(command, environment, endpoints)

    def _environment_of(self, installation: TritonInstallation) -> dict[str, str]:
        """Return Triton's environment, after checking that it and its stub can run in it."""
        named, libraries = self._settings.triton_env, self._folders.libraries
        environment = triton_environment(self._environment, libraries=libraries, named=named)
        require_bash(environment)
        require_loadable(installation.binary, environment)
        if has_our_python(installation, environment):
            return environment
        return triton_environment(self._environment, libraries=libraries, named=named, has_our_python=False)

    def _close_to_others(self) -> None:
        """Close the folder to other users than ours and the one that Triton runs as."""
        root, account = self._folders.root, self._account
        if account is None:
            root.chmod(0o700)
            return
        grant_traversal(account, self._above)
        os.chown(root, -1, account.gid)
        root.chmod(0o2750)  # setgid: what is created in it belongs to that group, too

    def _read_by_triton(self, installation: TritonInstallation) -> list[Path]:
        folders, settings = self._folders, self._settings
        ours = [folders.repository, folders.backends, folders.imports / settings.python_backends.name]
        return [installation.binary, installation.stub, *ours, *(each.resolve() for each in settings.model_repository)]

    def _guarded(self, launch: _Launch) -> list[str]:
        python = (sys.executable, "-I", "-S")
        owned = [str(self._folders.lock), shm_prefix(self._folders.root), _sockets(launch.endpoints)]
        arguments = [str(os.getpid()), *owned, format_cpus(self._cpus)]
        user = "" if self._account is None else self._account.identity
        return [*python, guardian.__file__, *arguments, *python, confine.__file__, user, *launch.command]


class EmbeddedTriton:
    """Process of an embedded Triton, behind its guardian."""

    def __init__(
        self, process: Process, endpoints: Endpoints, log: LogFile, shared_memory: str, answer: Answer, memory: ServerMemory
    ) -> None:
        self._guardian = process
        self._endpoints = endpoints
        self._log = log
        self._shared_memory = shared_memory
        self._memory = memory
        stubs = Stubs(process.pid, shared_memory)
        self.loads = LoadWatch(log, stubs, answer)
        self.stubs = StubWatch(stubs, self.loads)

    @property
    def endpoints(self) -> Endpoints:
        return self._endpoints

    async def wait(self) -> str:
        """Wait until Triton and everything it started is gone; return how it ended and the last lines of its
        log.
        """
        status = await self._guardian.wait()
        await self._sweep()
        return f"{describe_exit(status)}; the end of {self._log.path}:\n{self._log.tail()}"

    def held_memory(self) -> HeldMemory | None:
        """Return the memory of Triton, its guardian and its stubs; None if it has ended."""
        if self._guardian.returncode is not None:
            return None
        return self._memory.held(guardian.session_members(self._guardian.pid))

    def work_done(self) -> int | None:
        """Return what the log and the processes of Triton have come to, without its guardian; None if none of them is seen: it has
        ended or has not begun, or /proc hides them."""
        own = self._guardian.pid
        seen = [] if self._guardian.returncode is not None else [pid for pid in guardian.session_members(own) if pid != own]
        return self._log.end() + work_of(seen) if seen else None

    async def stop(self, *, grace_s: float) -> None:
        """Stop Triton: SIGTERM, then SIGKILL half a second before the grace is over. Idempotent.

        If this is cancelled the guardian still carries the stop out.
        """
        self._order_stop(max(0.0, grace_s - _KILL_MARGIN_S))
        try:
            # The caller may be in the middle of its own cancellation: see `supervisor._close`.
            await asyncio.wait_for(self._guardian.wait(), grace_s)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._guardian.kill()
            await self._guardian.wait()
        await self._sweep()

    def _order_stop(self, grace_s: float) -> None:
        orders = self._guardian.stdin
        if self._guardian.returncode is None and orders is not None and not orders.is_closing():
            orders.write(b"%f\n" % grace_s)

    async def _sweep(self) -> None:
        """Clean up in the guardian's place if it was killed before it could; its session contains all that it
        started.
        """
        if self._guardian.returncode is None or self._guardian.returncode >= 0:
            return
        deadline_s = asyncio.get_running_loop().time() + guardian.REAP_PATIENCE_S
        while (left := guardian.session_members(self._guardian.pid)) and asyncio.get_running_loop().time() < deadline_s:
            guardian.kill_all(left)
            await asyncio.sleep(0.02)
        guardian.remove_shared_memory(self._shared_memory)
        guardian.remove_sockets(_sockets(self._endpoints))


def _sockets(endpoints: Endpoints) -> str:
    """Return the folder of the sockets, which is removed with the process; empty if the endpoints are
    ports.
    """
    return endpoints.folder if isinstance(endpoints, TritonSockets) else ""


def describe_exit(status: int) -> str:
    """Describe how Triton ended by its guardian's exit status (asyncio's: -N if signal N ended the
    guardian).
    """
    if status < 0:
        return f"Triton's guardian was killed by {signal_name(-status)}, and Triton with it"
    if status == guardian.NOT_STARTED:
        return "Triton was not started"
    if status > 128:
        return f"Triton was killed by {signal_name(status - 128)}"
    return f"Triton ended with exit status {status}"
