"""Decisions of `tidegate tune`. Pure; `search` chooses what is measured and what is recommended."""
