"""Limits on names and numbers that settings and models' configurations share."""

from __future__ import annotations

import re

MOST_BYTES = 2**60
"""Of a model, a server or a disk: more than there is, and what is counted with it can be told to other processes (64 bits)."""


POOL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What a pool of servers may be called."""
