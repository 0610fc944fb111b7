"""Reads and writes what travels on the wire; pure functions over bytes, with no sockets and no clock."""
