"""Patterns of the admin API's parameters and fields in words, for the errors that people see (`admin/errors`)."""

from __future__ import annotations

from control_plane.admin.schema.views import NAME, NAME_OR_NONE, SCOPE
from control_plane.core.model import NAME_RULE
from control_plane.core.scope import SCOPE_NAMES
from control_plane.jobs.jobs import JOB_ID
from control_plane.objects.domain.validation import CURRENCY, KEY_ID, STICKY

DAY = "^(today|[0-9]{1,5}d|[0-9]{4}-[0-9]{2}-[0-9]{2})$"
DIMENSIONS = "^((tenant|model|day)(,(tenant|model|day)){0,2})?$"

RULES = {
    NAME: NAME_RULE,
    NAME_OR_NONE: f"{NAME_RULE}, or empty",
    f"^{KEY_ID.pattern}$": "an id of 12 hexadecimal digits, as the list shows it",
    f"^{JOB_ID.pattern}$": "an id such as the list shows: job- and 32 hexadecimal digits",
    f"^{STICKY.pattern}$": "tenant, key, sequence, header:NAME with a name in lower case, or empty for the request's contents",
    f"^{CURRENCY.pattern}$": "three capital letters, such as EUR (ISO 4217)",
    SCOPE: f"infer:GLOB (such as infer:text_*), {SCOPE_NAMES}",
    DAY: "a date such as 2026-01-31, today, or 7d for seven days ago",
    DIMENSIONS: "any of tenant, model and day, with commas between them",
}
