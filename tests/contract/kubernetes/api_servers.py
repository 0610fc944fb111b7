"""The API servers that the adapters of Kubernetes are held against: a scripted one, and a real one where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.kubernetes_api import ScriptedApi, api_in_a_thread, rules_of, write_account
from tests.real_kubernetes import WHY_NOT, RealApi, is_there

RIGHTS = ("base/gateway/discovery.yaml", "components/lease/rights.yaml", "components/model-resources/rights.yaml")
REAL = pytest.param("real", id="a real one", marks=pytest.mark.skipif(not is_there(), reason=WHY_NOT))
API_SERVERS = [pytest.param("scripted", id="a scripted one"), REAL]


class AnyApi(Protocol):
    """An API server, for an administrator; the gateway has its own account and the rights of its Roles."""

    @property
    def url(self) -> str: ...

    @property
    def account(self) -> Path: ...

    def apply(self, it: dict[str, Any]) -> None: ...

    def get(self, kind: str, name: str) -> Mapping[str, Any] | None: ...


@dataclass
class Scripted:
    """The scripted server as such."""

    api: ScriptedApi
    applying: Any
    account: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.api.port}"

    def apply(self, it: dict[str, Any]) -> None:
        self.applying(it)

    def get(self, kind: str, name: str) -> Mapping[str, Any] | None:
        return self.api.objects.get(name)


def an_api(which: str, request: pytest.FixtureRequest, held: ExitStack, folder: Path) -> AnyApi:
    """One without any objects of tests: a scripted one that ends with `held`, or the real one of this run."""
    if which == "real":
        real: RealApi = request.getfixturevalue("kubernetes")
        real.install()
        return real
    api, apply = held.enter_context(api_in_a_thread())
    api.rules = [rule for path in RIGHTS for rule in rules_of(path)]
    return Scripted(api, apply, write_account(folder / "account"))
