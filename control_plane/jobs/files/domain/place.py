"""Places of files that callers name: below the folders and object stores that administrators allow, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from control_plane.core.errors import InvalidRequest
from control_plane.core.model import MODEL_NAME

TENANT = "{tenant}"
"""Part of an allowed prefix that stands for the tenant's name: each has its own files."""
_MAX_CHARS = 1024
_URL = re.compile(r"(?P<store>[a-z][a-z0-9+.-]*://[^/]+|)(?P<path>/.*)")
_SEGMENT = re.compile(r"[^\x00-\x20\x7f-\xa0\\?#*\[\]]+")
"""A part of a path: no character by which a client of an object store would mean something else than a name."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Folder (`/data/jobs`) or object store (`s3://bucket/jobs`) in which callers' files may be."""

    store: str
    """Scheme and host, such as `s3://bucket`; empty: a folder of this machine."""
    segments: tuple[str, ...]

    @property
    def url(self) -> str:
        return "/".join((self.store, *self.segments))

    @property
    def root(self) -> Prefix:
        """The part of it that all tenants have in common."""
        fixed = next((number for number, each in enumerate(self.segments) if TENANT in each), len(self.segments))
        return Prefix(self.store, self.segments[:fixed])


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a file or a folder below the root of a prefix."""

    root: Prefix
    segments: tuple[str, ...]
    """Names of folders and of the file."""


def read_prefixes(texts: Sequence[str]) -> tuple[Prefix, ...]:
    """Read allowed prefixes. Raises ValueError: one is no absolute folder and no URL of a store."""
    found = []
    for text in texts:
        parts = _split(text.rstrip("/"))
        if parts is None or not (parts[1] or parts[0]):
            raise ValueError(f"{text[:100]!r} is no absolute folder and no URL such as s3://bucket/folder")
        found.append(Prefix(*parts))
    return tuple(found)


def place_of(prefixes: Sequence[Prefix], tenant: str, url: str) -> Place:
    """Find a caller's URL below the prefixes that its tenant may use. Raises InvalidRequest: it is below none."""
    parts = _split(url)
    if parts is None:
        raise InvalidRequest("expected s3://BUCKET/NAME or /FOLDER/NAME of visible characters, without . or .. and \\ ? # * [ ]")
    store, segments = parts
    for prefix in prefixes:
        own = _for_tenant(prefix, tenant)
        if own is not None and store == prefix.store and segments[: len(own)] == own and len(segments) > len(own):
            return Place(prefix.root, segments[len(prefix.root.segments) :])
    keyless = "" if tenant else "; without a key only below one without {tenant}"
    raise InvalidRequest(f"this place is not below one that the administrator has allowed (TIDEGATE_JOBS_STORES){keyless}")


def _for_tenant(prefix: Prefix, tenant: str) -> tuple[str, ...] | None:
    """The segments with the tenant's name; None where a tenant without a name, or an odd one, has none of its own."""
    if not any(TENANT in each for each in prefix.segments):
        return prefix.segments
    if not MODEL_NAME.fullmatch(tenant):
        return None
    return tuple(each.replace(TENANT, tenant) for each in prefix.segments)


def _split(url: str) -> tuple[str, tuple[str, ...]] | None:
    """Scheme and host, and the segments of the path; None where it is no plain absolute path."""
    found = _URL.fullmatch(url) if len(url) <= _MAX_CHARS else None
    if found is None:
        bare = re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/@:?#\s]+", url)
        return None if bare is None else (url, ())
    store, segments = found["store"], tuple(found["path"][1:].split("/"))
    if re.search(r"[@:?#\s]", store.partition("://")[2]) or store.startswith("file:"):
        return None
    return (store, segments) if all(map(_is_name, segments)) else None


def _is_name(segment: str) -> bool:
    """Whether a part of a path names something, also where it is decoded (`%2e%2e`), as by clients and servers of HTTP."""
    decoded = re.split(r"[/\\]", unquote(segment))
    return bool(_SEGMENT.fullmatch(segment)) and "." not in decoded and ".." not in decoded
