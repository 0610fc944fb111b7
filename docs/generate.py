"""Writes the reference pages of the documents, each from what the program itself uses.

    python -m docs.generate          # or `make docs`, which also builds the site

`tests/unit/docs/test_generate.py` fails when a page that is committed is not what this would write.
"""

from __future__ import annotations

from control_plane.settings import PROJECT_ROOT
from docs.generator import admin_api, cli, errors, events, metrics, settings

REFERENCE = PROJECT_ROOT / "docs" / "reference"
_WRITTEN = "<!-- Written by docs/generate.py from the code; change it there, then `make docs`. -->"
_PAGES = {
    "settings": settings.blocks,
    "cli": cli.blocks,
    "metrics": metrics.blocks,
    "admin-api": admin_api.blocks,
    "errors": errors.blocks,
    "events": events.blocks,
}


def pages() -> dict[str, str]:
    """The text of each page by the name of its file."""
    return {f"{name}.md": "\n\n".join((_WRITTEN, *blocks())) + "\n" for name, blocks in _PAGES.items()}


def main() -> None:
    """Write them."""
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)


if __name__ == "__main__":
    main()
