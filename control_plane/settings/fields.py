"""Types of settings' values, parsed from variables and flags, and the base class of all groups.

Used by the modules beside it, which declare the settings themselves.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from control_plane.core.names import MAX_SIZE_BYTES
from control_plane.core.text.cpus import parse_cpus

PROJECT_ROOT = Path(__file__).resolve().parents[2]
ENV_PREFIX = "TIDEGATE_"
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile("[A-Za-z0-9._-]{1,253}")


def _split_commas(value: object) -> object:
    return split_names(value) if isinstance(value, str) else value


def _parse_networks(value: object) -> object:
    parts = _split_commas(value)
    return [ip_network(str(part)) for part in parts] if isinstance(parts, list) else parts


def _parse_cpus(value: object) -> object:
    return parse_cpus(value) if isinstance(value, str) else value


def _parse_parameters(value: object) -> object:
    """Parse `MODEL:KEY=VALUE` entries into model -> key -> value; model and key may contain dots."""
    if not isinstance(value, str | list):
        return value
    parameters: dict[str, dict[str, str]] = {}
    for entry in value.split(",") if isinstance(value, str) else value:
        name, equals, setting = str(entry).strip().partition("=")
        model, colon, key = name.rpartition(":")  # from the right: a model's name may contain a colon
        if not (model and colon and key and equals):
            raise ValueError(f"{entry!r} is not of the form MODEL:KEY=VALUE, such as text_encoder:variant=fp32")
        parameters.setdefault(model, {})[key] = setting
    return parameters


def _require_host(name: str) -> str:
    """Return the name of a host, or its address. Raises ValueError: it is another text, to which no `Host` without its port is equal."""
    address = name.removeprefix("[").removesuffix("]")
    try:
        is_host = _HOST.fullmatch(name) is not None or ip_address(address).version == 6
    except ValueError:
        is_host = False
    if not is_host:
        raise ValueError(f"{name!r} is no name of a host, such as tidegate.internal: leave out scheme, port and wildcards")
    return name


def _require_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name) or name.upper().startswith(ENV_PREFIX):
        raise ValueError(
            f"{name!r} is not the name of a variable that may be passed on, such as HF_HOME; our own ({ENV_PREFIX}...) never are"
        )
    return name


HAS_SECRETS = "has_secrets"
"""Type of a validation error whose input may hold a secret, so that the message leaves the input out."""


_BYTES = re.compile(r"\s*(\d+(\.\d*)?|\.\d+)\s*[A-Za-z]*\s*", re.ASCII)


def _count_bytes(value: object, parse: ValidatorFunctionWrapHandler) -> object:
    expected = "expected a number of bytes, such as 2GiB or 500MB"
    if isinstance(value, str) and _BYTES.fullmatch(value) is None:  # pydantic looks at the beginning only
        raise ValueError(f"could not parse value and unit; {expected}")
    try:
        return parse(value)
    except ValidationError as exc:
        raise ValueError(f"{exc.errors()[0]['msg']}; {expected}") from None


def _without_credentials(url: str) -> str:
    """Return a model store's URL as it is; raise if it holds more than a bucket or host, a port and a path.

    Anything more may be a key or a password, which every list of settings would show.
    """
    parts = urlsplit(url)
    try:
        is_plain = not parts.scheme or ("@" not in parts.netloc and (":" not in parts.netloc or parts.port is not None))
    except ValueError:  # the text after the colon is not a port, so it may be a password
        is_plain = False
    if not is_plain or parts.query or "::" in url:
        raise PydanticCustomError(
            HAS_SECRETS,
            "leave credentials and options out of the URL: a store's client finds them in the provider's own variables (AWS_ACCESS_KEY_ID, "
            "...), files or roles; expected such as s3://BUCKET/PREFIX",
        )
    return url


def _require_collector(url: str) -> str:
    """Return a collector's URL as it is. Raises: it is no URL of HTTP, or holds more than host, port and path."""
    parts = urlsplit(url)
    try:
        is_plain = "@" not in parts.netloc and (":" not in parts.netloc.rpartition("]")[2] or parts.port is not None)
    except ValueError:
        is_plain = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain or parts.query or parts.fragment:
        raise PydanticCustomError(
            HAS_SECRETS,
            "expected such as http://localhost:4318, without a user, a password or a query: OTEL_EXPORTER_OTLP_HEADERS is for secrets",
        )
    return url


def is_utf8_encodable(text: str) -> bool:
    """Whether the text can be encoded as UTF-8 for other processes.

    Arguments that are not UTF-8 reach Python with lone surrogates in them, which cannot.
    """
    return text.encode(errors="replace").decode() == text


def split_names(value: str) -> list[str]:
    """Split a comma-separated list; blanks around names and empty names are dropped."""
    return [part.strip() for part in value.split(",") if part.strip()]


def first_line(path: object) -> str | None:
    """Return the first line of a file that holds a secret, without blanks around it; None without a `path`.

    Raises ValueError: the file cannot be used.
    """
    if path is None:
        return None
    try:
        with open(str(path), encoding="utf-8") as file:
            line = file.readline(_MAX_SECRET_CHARACTERS).strip()
    except OSError as exc:
        raise ValueError(f"cannot be read: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    if not line:
        raise ValueError("has no text in its first line")
    return line


def _require_first_line(path: Path) -> Path:
    first_line(path)
    return path


_MAX_SECRET_CHARACTERS = 4096

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NameList = Annotated[list[str], NoDecode, BeforeValidator(_split_commas)]
HostList = Annotated[list[Annotated[str, AfterValidator(_require_host)]], NoDecode, BeforeValidator(_split_commas)]
VariableList = Annotated[list[Annotated[str, AfterValidator(_require_variable)]], NoDecode, BeforeValidator(_split_commas)]
StoreList = Annotated[list[Annotated[str, AfterValidator(_without_credentials)]], NoDecode, BeforeValidator(_split_commas)]
ByteCountOrZero = Annotated[ByteSize, Field(le=MAX_SIZE_BYTES), WrapValidator(_count_bytes)]
ByteCount = Annotated[ByteSize, Field(gt=0, le=MAX_SIZE_BYTES), WrapValidator(_count_bytes)]
CollectorUrl = Annotated[str, AfterValidator(_require_collector)]
SecretFile = Annotated[Path, AfterValidator(_require_first_line)]
PathList = Annotated[list[Path], NoDecode, BeforeValidator(_split_commas)]
ModelParameters = Annotated[dict[str, dict[str, str]], NoDecode, BeforeValidator(_parse_parameters)]
NetworkList = Annotated[list[IPv4Network | IPv6Network], NoDecode, BeforeValidator(_parse_networks)]
CpuList = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_parse_cpus)]


class Group(BaseSettings):
    """Base class of a group of settings: immutable, no unknown keys, read from `TIDEGATE_` variables."""

    # An empty variable counts as not set: that is how compose files and shells leave one out.
    # The text under each field is what `serve --help` and the settings reference say of it.
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Options and variables: there are no files of them, which would be looked for all the same."""
        return init_settings, env_settings
