"""Decisions of admission control: rates, quotas, shares, whose turn it is, and what cannot be answered in time. Pure.

`fair_queue` is the queue of one model, `rate_limit` the token bucket of one tenant, `deadline` the estimate by which
load is shed.
"""
