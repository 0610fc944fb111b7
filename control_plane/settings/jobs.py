"""Settings of asynchronous jobs."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ByteSize, Field, SecretStr, ValidationInfo, field_serializer, field_validator

from control_plane.settings.fields import ByteCount, ByteCountOrZero, Group, NameList, Seconds, SecretFile, first_line


def _networks(texts: list[str]) -> list[str]:
    """Check that each is a network. Raises ValueError."""
    for text in texts:
        ip_network(text)
    return texts


class JobSettings(Group):
    """Asynchronous jobs: requests that are accepted at once and computed when there is room."""

    jobs: bool = True
    """Accept asynchronous jobs (`POST /v2/models/MODEL/jobs`) and compute them in this gateway, below interactive
    requests."""

    jobs_run: bool = True
    """Claim jobs in this gateway. Off, it accepts them and computes what processes of `tidegate jobs run` hand to it;
    without one of those they wait."""

    jobs_gateways: NameList = Field(default_factory=list)
    """Gateways that compute for `tidegate jobs run`, as `http[s]://HOST[:PORT]`; commas between several in the
    variable. It calls them with the key in `TIDEGATE_API_KEY`, which needs the scope `admin`."""

    jobs_plaintext: bool = False
    """Let `tidegate jobs run` send its key to gateways beyond this machine without TLS, as in a network that you
    trust."""

    jobs_url_file: SecretFile | None = None
    """File whose first line is the `jobs_url`, read at the start, and ignored where `jobs_url` is given."""

    jobs_url: SecretStr | None = Field(None, validate_default=True)
    """RabbitMQ (3.10 or newer) whose queue wakes the runners of jobs, `amqp://[USER:PASSWORD@]HOST[:PORT][/VHOST]` or
    `amqps://` for TLS. The jobs themselves are in the Redis of `state_url`, which must be given with it. Not given:
    runners look into the store of jobs four times a second."""

    jobs_spool: Path | None = None
    """Folder for the bodies and results of jobs, on a disk that keeps what is flushed to it. Gateways that share a
    `state_url` must share this folder, too. Without a `state_url` those up to 32 KiB are in the store of jobs itself.
    Not given: `spool` in `state_dir`."""

    jobs_at_once: int = Field(32, ge=1, le=1024)
    """Most jobs that each process computes at a time. How many it does compute follows from how long they take
    beside interactive requests; less than what fills a model's batches wastes capacity that is idle."""

    jobs_open: int = Field(100_000, ge=1)
    """Most jobs of all tenants together that wait or run; further ones are refused with 429."""

    jobs_open_per_tenant: int = Field(20_000, ge=1)
    """Most jobs of one tenant that wait or run."""

    jobs_bytes: ByteCount = ByteSize(16 * 2**30)
    """Most bytes in the bodies of all open jobs together. They need as much room in the spool, and results come on
    top."""

    jobs_bytes_per_tenant: ByteCount = ByteSize(4 * 2**30)
    """Most bytes in the bodies of one tenant's open jobs."""

    jobs_free_bytes: ByteCountOrZero = ByteSize(256 * 2**20)
    """Bytes that stay free on the spool's disk for results: bodies and files are refused with 503 where fewer are left. 0:
    they may fill it, and results wait until there is room."""

    jobs_max_upload_bytes: ByteCount = ByteSize(256 * 2**20)
    """Largest body of `POST /v1/files`, which is written to disk as it arrives; OpenAI allows 200 MB. A tenant's files
    and the answers of his open batches together have at most `jobs_bytes_per_tenant`, and one batch's more."""

    jobs_kept_per_tenant: int = Field(100_000, ge=1)
    """Most jobs of one tenant that are kept once they have ended. Of more the oldest go before their time; parts of a
    batch do not count."""

    jobs_kept_bytes_per_tenant: ByteCount = ByteSize(4 * 2**30)
    """Most bytes in the results of one tenant's ended jobs."""

    jobs_attempts: int = Field(4, ge=1, le=100)
    """Attempts after which a job is dead. One that ends the process that computes it has ended as many."""

    jobs_expire_s: Seconds = 86_400.0
    """Seconds that a job has to be done, unless its caller says otherwise; after them it is `expired`."""

    jobs_keep_s: Seconds = 86_400.0
    """Seconds for which a job that has ended can be asked for, with its result."""

    jobs_stores: NameList = Field(default_factory=list)
    """Folders of this machine (`/data/jobs`) and prefixes in object stores (`s3://bucket/jobs`) that jobs may have their
    input from and their output written to; commas between several in the variable. `{tenant}` stands for the tenant's
    name; without it every tenant reads and writes what is there. Not given: callers send the input themselves."""

    jobs_webhook_plaintext: bool = False
    """Let jobs name webhooks of `http://`, too. Messages are signed but not secret then: whoever is on the way reads
    them."""

    jobs_webhook_networks: Annotated[NameList, AfterValidator(_networks)] = Field(default_factory=list)
    """Networks in CIDR notation, such as `10.1.0.0/16`, that webhooks may be sent to although they are not of the public
    Internet; commas between several in the variable. Whoever may submit jobs can then have the gateway call any host
    there."""

    batches_keep_s: Seconds = 2_592_000.0
    """Seconds for which files of `/v1/files` and ended batches are kept: 30 days, as OpenAI keeps the output. A
    tenant's files and answers together have at most `jobs_bytes_per_tenant`, and one batch's more."""

    batches_open_per_tenant: int = Field(1000, ge=1)
    """Most batches of one tenant that have not ended; further ones are refused with 429."""

    @field_validator("jobs_stores")
    @classmethod
    def _as_prefixes(cls, texts: list[str]) -> list[str]:
        for text in texts:
            if not (text.startswith("/") or "://" in text) or "@" in text:
                raise ValueError("expected absolute folders and URLs such as s3://bucket/folder, without credentials")
        return texts

    @field_validator("jobs_url", mode="before")
    @classmethod
    def _from_file(cls, url: object, info: ValidationInfo) -> object:
        return url or first_line(info.data.get("jobs_url_file"))

    @field_serializer("jobs_url", when_used="json")
    def _with_password(self, url: SecretStr | None) -> str | None:
        """Keep the password for `to_plain`, which hands settings to workers; users are shown `effective` instead."""
        return url.get_secret_value() if url is not None else None
