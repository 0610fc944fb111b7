"""Every setting of `tidegate serve`, parsed once; each is also an environment variable `TIDEGATE_<NAME>`.

The command line builds `Settings` and `app` hands each part of the program its group; nothing else reads the
environment. Unknown `TIDEGATE_` variables are errors, so that a misspelt one never passes for a default.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from control_plane.core.errors import StartupError
from control_plane.core.text.redaction import without_secrets, without_user
from control_plane.core.text.validation_words import words_of
from control_plane.settings.docstrings import docstrings_of_fields
from control_plane.settings.fields import (
    ENV_PREFIX,
    HAS_SECRETS,
    PROJECT_ROOT,
    ByteCount,
    Group,
    is_utf8_encodable,
)
from control_plane.settings.frontends import AdminSettings, AuthenticationSettings, GatewaySettings, TlsSettings
from control_plane.settings.jobs import JobSettings
from control_plane.settings.node import NodeSettings
from control_plane.settings.regions import RegionSettings
from control_plane.settings.servers import FleetSettings, TritonSettings
from control_plane.settings.storage import CacheSettings, EventSettings, ProcessSettings, StateSettings, UsageSettings
from control_plane.settings.triton_urls import POOL, parse_triton_url, parse_triton_urls, split_place

__all__ = [
    "ENV_PREFIX",
    "POOL",
    "PROJECT_ROOT",
    "AdminSettings",
    "AuthenticationSettings",
    "ByteCount",
    "CacheSettings",
    "EventSettings",
    "FleetSettings",
    "GatewaySettings",
    "JobSettings",
    "NodeSettings",
    "ProcessSettings",
    "RegionSettings",
    "Settings",
    "StateSettings",
    "TlsSettings",
    "TritonSettings",
    "UsageSettings",
    "effective",
    "fields_of_settings",
    "from_plain",
    "is_utf8_encodable",
    "load_settings",
    "parse_triton_url",
    "parse_triton_urls",
    "split_place",
    "to_plain",
]


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of one run, in groups that are handed to the parts that need them."""

    process: ProcessSettings
    state: StateSettings
    gateway: GatewaySettings
    tls: TlsSettings
    authentication: AuthenticationSettings
    admin: AdminSettings
    triton: TritonSettings
    fleet: FleetSettings
    node: NodeSettings
    regions: RegionSettings
    usage: UsageSettings
    events: EventSettings
    cache: CacheSettings
    jobs: JobSettings

    @property
    def is_attached(self) -> bool:
        """Whether the gateway is attached to Tritons that others run, rather than starting embedded ones."""
        return bool(self.triton.triton_url) or self.fleet.is_listed

    @property
    def is_fleet(self) -> bool:
        """Whether models are loaded on demand, on whichever server has room for them."""
        listed = parse_triton_urls(self.triton.triton_url)
        return self.fleet.is_on or len(listed) > 1 or any(each.endpoints.node for each in listed)


_GROUPS: dict[str, type[Group]] = {
    "process": ProcessSettings,
    "state": StateSettings,
    "gateway": GatewaySettings,
    "tls": TlsSettings,
    "authentication": AuthenticationSettings,
    "admin": AdminSettings,
    "triton": TritonSettings,
    "fleet": FleetSettings,
    "node": NodeSettings,
    "regions": RegionSettings,
    "usage": UsageSettings,
    "events": EventSettings,
    "cache": CacheSettings,
    "jobs": JobSettings,
}


def load_settings(overrides: Mapping[str, object] | None = None, *, flags: Mapping[str, str] | None = None) -> Settings:
    """Merge defaults, `TIDEGATE_` variables and `overrides` from the command line; the later ones win.

    An override of None counts as not given. `flags` are the options that have another name than their setting.

    Raises:
        StartupError: an unknown variable or a value that does not fit; the text names it and what would fit.
    """
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    _refuse_unknown(os.environ)
    try:
        groups: dict[str, Any] = {
            key: group(**{name: given[name] for name in group.model_fields if name in given}) for key, group in _GROUPS.items()
        }
    except ValidationError as exc:
        raise StartupError("; ".join(_describe(error, given, flags or {}) for error in exc.errors())) from exc
    return Settings(**groups)


def fields_of_settings() -> dict[str, FieldInfo]:
    """Every setting's field by name, with the text under it as its description."""
    found: dict[str, FieldInfo] = {}
    for group in _GROUPS.values():
        docstrings = docstrings_of_fields(group)
        for name, field in group.model_fields.items():
            found[name] = described = copy(field)
            described.description = docstrings.get(name)
    return found


def effective(settings: Settings) -> dict[str, object]:
    """Every setting by name with its value in force, secrets masked."""
    return {name: _masked(value) for key in _GROUPS for name, value in getattr(settings, key)}


def to_plain(settings: Settings) -> dict[str, Any]:
    """Encode the settings as JSON types for a worker process; secrets are in clear, unlike in `effective`."""
    return {key: getattr(settings, key).model_dump(mode="json") for key in _GROUPS}


def from_plain(plain: Mapping[str, Any]) -> Settings:
    """Decode what `to_plain` returned.

    Every field is given, so the environment of this process has no say: all processes of a run have equal
    settings.
    """
    groups: dict[str, Any] = {key: group(**plain[key]) for key, group in _GROUPS.items()}
    return Settings(**groups)


def _masked(value: object) -> object:
    if isinstance(value, SecretStr):
        return "********"
    return without_user(value) if isinstance(value, str) else value


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = {(ENV_PREFIX + name).upper() for group in _GROUPS.values() for name in group.model_fields}
    unknown = sorted(name for name in environment if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
    if unknown:
        named = ", ".join(name + _meant(name.upper(), known) for name in unknown)
        raise StartupError(f"unknown setting {named}; unset it, or take one that `tidegate config show` lists")


def _meant(name: str, known: Collection[str]) -> str:
    ends = [each.removeprefix(ENV_PREFIX) for each in known]
    found = difflib.get_close_matches(name.removeprefix(ENV_PREFIX), ends, n=1, cutoff=0.8)
    return f" (did you mean {ENV_PREFIX}{found[0]}?)" if found else ""


def _describe(error: Mapping[str, Any], given: Mapping[str, object], flags: Mapping[str, str]) -> str:
    name = str(error["loc"][0]) if error["loc"] else "settings"
    flag = flags.get(name, "--" + name.replace("_", "-"))
    where = flag if name in given else ENV_PREFIX + name.upper()  # not every setting has a flag
    got = "" if error["type"] == HAS_SECRETS else f", got {without_secrets(repr(error['input']))}"
    return f"{where}: {words_of(error['msg'])}{got}"
