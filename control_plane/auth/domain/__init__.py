"""Decisions of authentication and authorization. Pure; `authorization` has the table of the right that each call needs."""
