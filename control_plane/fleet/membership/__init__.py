"""Membership: servers join and leave a running fleet as its list of servers changes.

`members` follows the list; `draining` drains a server before it leaves.
"""
