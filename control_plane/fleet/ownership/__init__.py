"""Ownership: which of several gateways loads and unloads, and what the others tell it.

`election` holds the lease; `reports` and `leader_requests` carry the others' load and wishes to the leader.
"""
