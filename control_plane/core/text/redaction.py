"""Redaction of URLs in texts that are shown or logged: settings, and what the clients of stores say of their errors."""

from __future__ import annotations

import re


def without_secrets(text: str) -> str:
    """Return the text with the user, password and query of every URL in it replaced by `...`."""
    return re.sub(r"\?(?:[^\s\"',]|,(?![A-Za-z][\w+.-]*://))+", "?...", without_user(text))


def without_user(text: str) -> str:
    """Return the text with the user and password of every URL in it replaced by `...`.

    A password may contain any character, also `@` and `/`: everything up to the last `@` before the next URL
    is cut.
    """
    return re.sub(r"//((?:(?!://).)*)", _cut_user, text, flags=re.DOTALL)


def _cut_user(found: re.Match[str]) -> str:
    _, at, rest = found[1].rpartition("@")
    return f"//...@{rest}" if at else found[0]
