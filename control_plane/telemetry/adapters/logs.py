"""Formats of the log on standard error: text for people, or one JSON object per line for log collectors."""

from __future__ import annotations

import json
import logging
import sys
from typing import Literal

# A record's standard attributes; any other came in by `extra=` and is printed as a field.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class _JsonFormatter(logging.Formatter):
    """Formatter of log lines for programs: one JSON object each."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _ConsoleFormatter(logging.Formatter):
    """Formatter of log lines for people: the message, then its extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        extras = "".join(f" {name}={value}" for name, value in _extras(record).items())
        return super().format(record) + extras


def configure_logging(style: Literal["console", "json"]) -> None:
    """Send our records from INFO on, and other packages' from WARNING on, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if style == "json" else _ConsoleFormatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("control_plane").setLevel(logging.INFO)


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
