"""Membership: servers join a running fleet and leave it, as a list says.

`members` follows the list; `draining` sees off a server that leaves.
"""
