"""Makes links that leave `docs/` work in the site: MkDocs calls it (`hooks` in mkdocs.yml).

In the repository a page links to what it means, such as `../../perf/README.md`. In the site that file is a page or a file too, below
`repository/`, and so is whatever it links to itself; `mkdocs build --strict` fails on a link to what is not there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

PROJECT = Path(__file__).resolve().parents[1]
DOCS = "docs/"
OUTSIDE = "repository/"
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:[#\s][^)]*)?\))")
"""In Markdown, of what is no URL: what stands before, the path, the rest."""
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside `docs/`, and what that links to."""
    waiting = [DOCS + file.src_uri for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        for target in targets(waiting.pop()):
            if target not in seen and not target.startswith(DOCS) and (PROJECT / target).is_file():
                seen.add(target)
                files.append(_outside(target, config))
                waiting += [target] if target.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have each link lead to where its target is in the site."""
    here = _in_repository(page.file.src_uri)

    def rewritten(found: re.Match[str]) -> str:
        return f"{found[1]}{_relative(_in_site(_target(here, found[2])), page.file.src_uri)}{found[3]}"

    parts = _CODE.split(markdown)  # every other one is code
    return "".join(part if is_code else LINK.sub(rewritten, part) for is_code, part in zip(cycle((False, True)), parts, strict=False))


def targets(document: str) -> Iterator[str]:
    """What it links to, by the path in the repository; folders by their README."""
    text = _CODE.sub("", (PROJECT / document).read_text())
    return (_target(document, path) for _, path, _ in LINK.findall(text))


def _target(document: str, path: str) -> str:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(document), path))
    return posixpath.join(target, "README.md") if (PROJECT / target).is_dir() else target


def _outside(target: str, config: MkDocsConfig) -> File:
    return File.generated(config, OUTSIDE + target, abs_src_path=str(PROJECT / target), inclusion=InclusionLevel.NOT_IN_NAV)


def _in_site(target: str) -> str:
    return target.removeprefix(DOCS) if target.startswith(DOCS) else OUTSIDE + target


def _in_repository(uri: str) -> str:
    return uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else DOCS + uri


def _relative(uri: str, page: str) -> str:
    return posixpath.relpath(uri, posixpath.dirname(page) or ".")
