"""Texts that people write or read: parsed, redacted and worded. Pure."""
