"""Prints a bill of materials (SBOM, CycloneDX 1.6 as JSON) of sections of `constraints.txt`.

    python -m dependencies.bill NAME... > sbom.cdx.json

It lists what the lock file pins for the Python and platform that it runs on, with the digests of each release's files:
what pip installed is one of them. Equal input gives equal bytes. Standard library only, but for `packaging`, which is
looked for where pip has it, too.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from dependencies.sections import LOCK, read_sections, requirements

try:
    from packaging.markers import Marker
except ImportError:  # an environment that has nothing but pip
    from pip._vendor.packaging.markers import Marker  # type: ignore[assignment]

_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>.*?))? (?=--hash=)")


def bill(names: list[str], text: str) -> dict[str, Any]:
    """Return the bill of these sections of a lock file's text. Raises KeyError: there is no such section."""
    sections = read_sections(text)
    components = [each for name in names for each in _components(sections[name])]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, json.dumps(components, sort_keys=True))}",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "tidegate", "bom-ref": "tidegate"}},
        "components": components,
    }


def _components(section: str) -> Iterator[dict[str, Any]]:
    for entry in requirements(section):
        match = _PINNED.match(entry)
        assert match, entry
        if match["marker"] and not Marker(match["marker"].removesuffix("\\").strip()).evaluate():
            continue
        name = re.sub(r"[-_.]+", "-", match["name"]).lower()
        url = f"pkg:pypi/{name}@{match['version'].replace('+', '%2B')}"
        digests = re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
        yield {
            "type": "library",
            "name": name,
            "version": match["version"],
            "purl": url,
            "bom-ref": url,
            "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests],
        }


def main(names: list[str]) -> int:
    """Print the bill of the named sections; return 1 if there is no such section."""
    try:
        print(json.dumps(bill(names, LOCK.read_text()), indent=1))
    except KeyError as exc:
        print(f"error: no section {exc} in {LOCK.name}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
