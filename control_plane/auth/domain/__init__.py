"""Decisions of authentication and authorization. Pure; `authorization` is the table of which call needs which right."""
