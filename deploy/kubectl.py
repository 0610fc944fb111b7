"""`kubectl` as a subprocess: each call has a time limit, and what it says on standard error is the error's text."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deploy.errors import DeployError

_CALL_S = 60.0
"""Longest time of one call; the API server answers in seconds or not at all."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Output of a call of kubectl, and its exit status."""

    status: int
    out: str
    err: str


class Kubectl:
    """The `kubectl` of the PATH, for the cluster of its current context or of a named one."""

    def __init__(self, context: str = "") -> None:
        """Raises DeployError: there is no `kubectl`."""
        program = shutil.which("kubectl")
        if program is None:
            raise DeployError("kubectl is missing", next_step="install it (1.32 or newer) and put it on the PATH")
        self._program = program
        self._context = [f"--context={context}"] if context else []

    def run(self, *words: str, given: str | None = None, timeout_s: float = _CALL_S) -> Answer:
        """Run a command and return what it said, whatever its exit status.

        Raises DeployError: it took longer than `timeout_s`.
        """
        command = [self._program, *words, *self._context]
        try:
            done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise DeployError(
                f"`kubectl {words[0]}` took longer than {timeout_s:g} s", next_step="is the cluster reachable? `kubectl get nodes` says so"
            ) from None
        return Answer(done.returncode, done.stdout, done.stderr.strip())

    def ask(self, *words: str, given: str | None = None, timeout_s: float = _CALL_S) -> str:
        """Run a command and return what it printed. Raises DeployError: it failed, with what it said."""
        answer = self.run(*words, given=given, timeout_s=timeout_s)
        if answer.status != 0:
            raise DeployError(f"`kubectl {' '.join(words[:2])}` failed: {answer.err or answer.out}")
        return answer.out

    def get(self, *words: str) -> dict[str, Any]:
        """Return an object or a list as JSON. Raises DeployError."""
        found: dict[str, Any] = json.loads(self.ask("get", *words, "--output=json"))
        return found

    def items(self, *words: str) -> list[dict[str, Any]]:
        """Return the objects of a list. Raises DeployError."""
        return list(self.get(*words)["items"])

    def exists(self, *words: str) -> bool:
        """Whether an object is there. Raises DeployError."""
        return bool(self.ask("get", *words, "--ignore-not-found", "--output=name").strip())

    @contextmanager
    def forwarding(self, namespace: str, target: str, port: int) -> Iterator[int]:
        """Forward a free local port to a Service's or a pod's for the duration of the block; yields the port.

        Raises DeployError: the way does not open.
        """
        command = [self._program, "port-forward", f"--namespace={namespace}", target, f":{port}", "--address=127.0.0.1", *self._context]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                # "Forwarding from 127.0.0.1:41237 -> 8000", or the end of the program.
                line = process.stdout.readline()
                if not line.startswith("Forwarding from 127.0.0.1:"):
                    process.kill()
                    raise DeployError(f"`kubectl port-forward {target}` failed: {process.stderr.read().strip() or line.strip()}")
                yield int(line.split(":")[1].split()[0])
            finally:
                process.kill()
