"""Names that the admin API and its clients share."""

from __future__ import annotations

CONTINUE = "Tidegate-Continue"
"""Header with the token of a list's next page."""
