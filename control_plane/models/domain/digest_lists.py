"""Codec of digest lists that come with a model's files, and of the warm tier's record of a copy.

A list is a `SHA256SUMS` as sha256sum(1) writes it, or a `manifest.json` as the recipes here write it
(`artefacts`); it may be in any folder and is about the files in and below that folder. Called by
`models/tiers/model_fetch` and `models/adapters/warm_tier`.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import orjson

from control_plane.models.domain.model_source import WarmCopy, WarmFile

SUMS, MANIFEST = "SHA256SUMS", "manifest.json"
_FORMAT = 1
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


def is_list(path: str) -> bool:
    """Whether the path of a model's file is that of a digest list."""
    return path.rpartition("/")[2] in (SUMS, MANIFEST)


def read_list(path: str, text: bytes) -> dict[str, str]:
    """Decode the digest list at `path`: SHA-256 digests by path within the model. Raises ValueError: it
    cannot be read.
    """
    folder, _, name = path.rpartition("/")
    found = _sums(text.decode()) if name == SUMS else _artefacts(orjson.loads(text))
    return {f"{folder}/{each}" if folder else each: digest.lower() for each, digest in found.items()}


def _sums(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    matches = [_LINE.fullmatch(line) for line in lines]
    if None in matches:
        raise ValueError(f"line {matches.index(None) + 1} is no digest and name")
    return {match[2].removeprefix("./"): match[1] for match in matches if match is not None}


def _artefacts(manifest: Any) -> dict[str, str]:
    """Return the digests in a manifest; none if it is some other program's manifest."""
    artefacts = manifest.get("artefacts") if isinstance(manifest, dict) else None
    if not isinstance(artefacts, dict):
        return {}
    digests = {name: entry.get("sha256") for name, entry in artefacts.items() if isinstance(entry, dict)}
    return {name: digest for name, digest in digests.items() if isinstance(digest, str) and _DIGEST.fullmatch(digest)}


def write_copy(copy: WarmCopy) -> bytes:
    """Encode the record of a warm copy."""
    return orjson.dumps({"format": _FORMAT, **asdict(copy)}, option=orjson.OPT_INDENT_2)


def read_copy(text: bytes) -> WarmCopy:
    """Decode the record of a warm copy. Raises ValueError: it is none."""
    try:
        held = orjson.loads(text)
        if held.pop("format") != _FORMAT:
            raise ValueError("it is of another format")
        return WarmCopy(held["name"], held["version"], tuple(WarmFile(**file) for file in held["files"]))
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"it is no record of a copy: {exc}") from exc
