"""Limits on names and numbers that settings and models' configurations share."""

from __future__ import annotations

import re

MAX_SIZE_BYTES = 2**60
"""Largest size in bytes of a model, server or disk: more than any has, and sums of sizes still fit into 64
bits."""


POOL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Pattern of the names of server pools."""
