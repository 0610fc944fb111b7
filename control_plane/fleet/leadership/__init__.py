"""Ownership: which of several gateways loads and unloads models, and what the other gateways report to it.

`election` holds the lease; `reports` and `leader_requests` carry load reports and load requests to the leader.
"""
