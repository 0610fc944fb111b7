"""Starts and ends what scenarios measure, and reads what it counted and used."""
