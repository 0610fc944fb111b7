"""Idempotency of the admin API: a request that is sent again with its `Idempotency-Key` gets the first one's answer.

`middleware` does it; `ports` is where gateways share its records, in which `sealed_answer` keeps answers that have secrets.
"""
