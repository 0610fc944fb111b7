"""Adapters of the admin API's ports."""
