"""What must not be in the audit log: secrets, by the names of their fields and by their forms.

By name, since a kind of object that is added later has its secrets left out without anybody's doing; by form, since
people paste keys into descriptions and reasons.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

NOT_SHOWN = "(not shown)"

_SECRET_FIELD = re.compile(r"secret|password|passwd|token|credential|private_key|authorization", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"(?P<key>\btg_[0-9a-f]{12}_)[\w-]+"  # an API key: its id may be shown
    r"|\bwhsec_[A-Za-z0-9+/]+=*"  # the secret of a webhook
    r"|\beyJ[\w-]{5,}\.[\w-]+\.[\w-]*"  # a JSON Web Token
    r"|(?P<scheme>://)(?:[^/@\s:]*:(?:(?!://)\S)*|[^/@\s]+)@"  # a URL's credentials: up to the last @ before the next URL
)


def redacted(body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return an object's fields with every secret replaced, at any depth."""
    if body is None:
        return None
    return {redacted_text(name): NOT_SHOWN if _SECRET_FIELD.search(name) else _value(value) for name, value in body.items()}


def redacted_text(text: str) -> str:
    """Return a text without API keys, tokens and URLs' credentials."""
    return _SECRET_TEXT.sub(lambda found: f"{found['key'] or found['scheme'] or ''}{NOT_SHOWN}", text)


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return redacted(value)
    if isinstance(value, list | tuple):
        return [_value(each) for each in value]
    return redacted_text(value) if isinstance(value, str) else value
