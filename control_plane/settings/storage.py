"""Settings of the process itself, of what it stores (state, usage, logs), and of the response cache."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ByteSize, Field, SecretStr, ValidationInfo, field_serializer, field_validator

from control_plane.settings.fields import PROJECT_ROOT, ByteCount, ByteCountOrZero, CpuList, Group, Seconds, SecretFile, first_line


class ProcessSettings(Group):
    """The process itself: its folder, its workers, their CPUs and its log."""

    state_dir: Path = PROJECT_ROOT / ".state"
    """Folder for everything that a run writes: the managed model repository, Triton's log, `endpoints.json`,
    and the SQLite stores. Each running `tidegate` needs its own."""

    workers: int = Field(1, ge=1, le=256)
    """Processes that serve the data ports. One serves some ten thousand small requests per second; more take
    CPU from Triton."""

    gateway_cpus: CpuList = ()
    """CPUs for the data plane, such as `0` or `0-3`; with N workers each gets every Nth of the list. Not
    given: all CPUs."""

    log_format: Literal["console", "json"] = "console"
    """Format of the log on standard error: `console` for people, `json` (one object per line) for log
    collectors."""


class StateSettings(Group):
    """The state store: keys, tenants, routes, prices and usage."""

    state_url_file: SecretFile | None = None
    """File whose first line is the `state_url`, such as a mounted Kubernetes Secret; read at the start, and ignored where
    `state_url` is given."""

    state_url: SecretStr | None = Field(None, validate_default=True)
    """Redis that stores the state for several gateways, `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]` or
    `rediss://` for TLS. It must keep what it is given: `maxmemory-policy noeviction` and `appendonly yes`, so
    never use a Redis that serves as a cache. A power failure there loses the last second or two of writes (a job
    that was accepted, a revocation), unless it has `appendfsync always`, as that of `make deploy` has. Where it does
    not answer at the start it is waited for, as long as `start_timeout_s`. Not given: SQLite files in `state_dir`, for one gateway."""

    audit_keep_entries: int = Field(100_000, ge=1000, le=1_000_000_000)
    """Most entries of the audit log that are kept in the Redis of `state_url`, which accepts nothing more once it is full: the
    oldest are removed as further ones are written. One takes about 1 KB, with the largest objects 125 KB. Export them before, or
    what was changed then is not known any more. The same for all gateways that share it. A file in `state_dir` keeps all."""

    @field_validator("state_url", mode="before")
    @classmethod
    def _from_file(cls, url: object, info: ValidationInfo) -> object:
        return url or first_line(info.data.get("state_url_file"))

    @field_serializer("state_url", when_used="json")
    def _with_password(self, url: SecretStr | None) -> str | None:
        """Keep the password for `to_plain`, which hands settings to workers; users are shown `effective`
        instead.
        """
        return url.get_secret_value() if url is not None else None


class UsageSettings(Group):
    """Settings of usage metering and of the request log."""

    usage_sums: int = Field(100_000, ge=1000)
    """Most usage sums that wait in memory to be written to the store: one per tenant, model and day, some 350
    bytes each. When full, requests for a further tenant, model or day are still served but not metered; a
    metric counts them as dropped. Must be more than the sums in use within half a second, or some usage is
    always lost."""

    usage_keep_days: int | None = Field(None, ge=1, le=36_500)
    """Days, the present one among them, whose usage sums are kept; older ones are removed. The sum of a tenant, model and day takes
    up to 0.8 KB in the Redis of `state_url`, which accepts nothing more once it is full. The same for all gateways that share it.
    Not given: all days."""

    request_log: Path | None = None
    """File that gets one JSON line per request. After a rename, as by logrotate, a new file is opened within
    a second. Not given: no request log."""


class EventSettings(Group):
    """Events for others: usage, audit, requests and what happens on the gateway, as CloudEvents."""

    events_url_file: SecretFile | None = None
    """File whose first line is the `events_url`, read at the start, and ignored where `events_url` is given."""

    events_url: SecretStr | None = Field(None, validate_default=True)
    """Redis whose streams others subscribe to, `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]` or `rediss://`. Give it `maxmemory-policy
    noeviction`; it may be the Redis of `state_url`, and not that of `cache_url`. While it is away requests go on, usage and audit
    wait in their stores, and records of requests are dropped. Not given: events are read from the admin API alone."""

    events_keep: int = Field(100_000, ge=1000, le=1_000_000_000)
    """Most events of each stream that are kept for subscribers who come back: in the Redis of `events_url`, some 0.5 KB each, and, of
    usage alone, in the store of usage (0.3 KB). A subscriber that is away while more come finds a gap in `sequence`. With few, a short
    outage of either loses events of usage to subscribers; the sums are kept all the same."""

    @field_validator("events_url", mode="before")
    @classmethod
    def _from_file(cls, url: object, info: ValidationInfo) -> object:
        return url or first_line(info.data.get("events_url_file"))

    @field_serializer("events_url", when_used="json")
    def _with_password(self, url: SecretStr | None) -> str | None:
        """Keep the password for `to_plain`, which hands settings to workers; users are shown `effective`
        instead.
        """
        return url.get_secret_value() if url is not None else None


class CacheSettings(Group):
    """The response cache, for models whose configuration or route says that equal requests have equal
    responses.
    """

    cache_bytes: ByteCountOrZero = Field(ByteSize(256 * 2**20), le=2**40)
    """Bytes of responses cached in this gateway's memory, over all its workers. Each entry counts 576 bytes
    on top of its content, so below some thousand bytes per worker next to nothing is cached. 0 turns caching
    off, also at `cache_url`."""

    cache_entry_bytes: ByteCount = ByteSize(2**20)
    """Largest response that is cached, in bytes. A larger one would evict many small ones, and delay others'
    lookups while it travels to `cache_url`."""

    cache_ttl_s: Seconds = 3600.0
    """Most seconds that a response is cached, unless its route says otherwise. Reloads and purges take effect
    at once, whatever this is."""

    cache_url_file: SecretFile | None = None
    """File whose first line is the `cache_url`, read at the start, and ignored where `cache_url` is given."""

    cache_url: SecretStr | None = Field(None, validate_default=True)
    """Redis that gateways share as a second cache level, `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]` or
    `rediss://`. It must not be the Redis of `state_url`: give it a `maxmemory` and `maxmemory-policy
    allkeys-lfu` or `allkeys-lru`, so that it evicts. Not given: each gateway has only its own cache."""

    @field_validator("cache_url", mode="before")
    @classmethod
    def _from_file(cls, url: object, info: ValidationInfo) -> object:
        return url or first_line(info.data.get("cache_url_file"))

    @field_serializer("cache_url", when_used="json")
    def _with_password(self, url: SecretStr | None) -> str | None:
        """Keep the password for `to_plain`, which hands settings to workers; users are shown `effective`
        instead.
        """
        return url.get_secret_value() if url is not None else None
