"""Files of texts, one on each line, as `tidegate embed` and `tidegate jobs submit` read them."""

from __future__ import annotations

from pathlib import Path

from control_plane.core.errors import InvalidRequest


def read_texts(path: Path) -> list[str]:
    """Read the lines of a file that are not blank. A line ends with a line feed, before which there may be a carriage return,
    and nowhere else: a text may have any other of Unicode's line separators in it. Raises InvalidRequest.
    """
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise InvalidRequest(f"--file {path} cannot be read as UTF-8 text: {why}") from exc
    texts = [line.removesuffix("\r") for line in content.split("\n") if line.strip()]
    if not texts:
        raise InvalidRequest(f"--file {path} has no lines to embed")
    return texts
