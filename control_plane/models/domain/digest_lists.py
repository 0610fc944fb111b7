"""Lists of digests beside a model's files, and the warm tier's record of a copy.

Lists: `SHA256SUMS` as sha256sum(1) writes it, and `manifest.json` as the recipes here do (`artefacts`); each in any folder, of
the files in and below it. Called by `models/tiers/model_fetch` and `models/adapters/warm_tier`.
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
    """Whether a file of a model, by its path, may be a list of digests."""
    return path.rpartition("/")[2] in (SUMS, MANIFEST)


def read_list(path: str, text: bytes) -> dict[str, str]:
    """Digests by path within the model, of the list at `path`. Raises ValueError: it cannot be read."""
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
    """A manifest of another make says nothing here."""
    artefacts = manifest.get("artefacts") if isinstance(manifest, dict) else None
    if not isinstance(artefacts, dict):
        return {}
    digests = {name: entry.get("sha256") for name, entry in artefacts.items() if isinstance(entry, dict)}
    return {name: digest for name, digest in digests.items() if isinstance(digest, str) and _DIGEST.fullmatch(digest)}


def write_copy(copy: WarmCopy) -> bytes:
    return orjson.dumps({"format": _FORMAT, **asdict(copy)}, option=orjson.OPT_INDENT_2)


def read_copy(text: bytes) -> WarmCopy:
    """Raises ValueError: it is none."""
    try:
        held = orjson.loads(text)
        if held.pop("format") != _FORMAT:
            raise ValueError("it is of another format")
        return WarmCopy(held["name"], held["version"], tuple(WarmFile(**file) for file in held["files"]))
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"it is no record of a copy: {exc}") from exc
