"""Idempotency of the admin API: a repeated request with the same `Idempotency-Key` gets the answer of the first one.

`middleware` implements it; `ports` is the store of records that gateways share, in which `sealed_answer` encrypts answers
that contain secrets.
"""
