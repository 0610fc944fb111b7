"""Decisions on which region gets a request, and how many it may have at once. Pure."""
