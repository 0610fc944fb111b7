"""Settings of the process itself, and of all that it writes down or keeps in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_serializer

from control_plane.settings.fields import PROJECT_ROOT, CpuList, Group, Seconds


class ProcessSettings(Group):
    """The process itself."""

    state_dir: Path = PROJECT_ROOT / ".state"
    """Everything a run writes: the managed repository, Triton's log, `endpoints.json`. One running `tidegate` each."""

    workers: int = Field(1, ge=1, le=256)
    """Processes that answer the data ports. One serves some ten thousand small requests a second; more take CPU from Triton."""

    gateway_cpus: CpuList = ()
    """CPUs that the data plane runs on, such as `0` or `0-3`: of N workers each takes every Nth of the list. Not given: all."""

    log_format: Literal["console", "json"] = "console"
    """`json` writes one object per line, for log collectors."""


class StateSettings(Group):
    """What must be remembered: keys, tenants, routes, prices, and what was used."""

    state_url: SecretStr | None = None
    """Redis that several gateways share, `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]` or `rediss://` for TLS; never the one of a
    cache: it must have `maxmemory-policy noeviction` and `appendonly yes`. When its machine loses power, what it was told in the last
    second is lost, unless it has `appendfsync always`. Not given: SQLite files in `state_dir`, for one gateway."""

    @field_serializer("state_url", when_used="json")
    def _with_password(self, url: SecretStr | None) -> str | None:
        """For `to_plain`; whatever is shown goes through `effective`."""
        return url.get_secret_value() if url is not None else None


class UsageSettings(Group):
    """What is written down of each request."""

    usage_sums: int = Field(100_000, ge=1000)
    """Sums that wait to be added to the usage store, one for each tenant, model and day, of some 350 bytes. While there are so many,
    requests of further ones are served, not metered, and counted as dropped. Less than are in use in half a second loses some always."""

    request_log: Path | None = None
    """File that gets a JSON line for each request. One that was renamed is opened anew within a second, as logrotate wants it.
    Not given: there is none."""


class CacheSettings(Group):
    """The response cache, for models whose configuration or route says that equal requests have equal answers."""

    cache_bytes: int = Field(256 * 2**20, ge=0, le=2**40)
    """Bytes of answers held in this gateway's memory, of all its workers together; each takes 576 beside its own, so that less than some
    thousand for each worker keeps next to nothing. 0 keeps none anywhere, also not at `cache_url`."""

    cache_entry_bytes: int = Field(2**20, ge=1)
    """Largest answer that is kept. Larger ones push out many small ones, and hold up everybody while they travel to `cache_url`."""

    cache_ttl_s: Seconds = 3600.0
    """Seconds an answer is kept at most, where its route does not say. Reloads and purges hold at once whatever this is."""

    cache_url: SecretStr | None = None
    """Redis that gateways share as a second level, `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]` or `rediss://`; never the one of
    `state_url`: give it a `maxmemory` and `maxmemory-policy allkeys-lfu` or `allkeys-lru`. Not given: each gateway keeps its own only."""

    @field_serializer("cache_url", when_used="json")
    def _with_password(self, url: SecretStr | None) -> str | None:
        """For `to_plain`; whatever is shown goes through `effective`."""
        return url.get_secret_value() if url is not None else None
