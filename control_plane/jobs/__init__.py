"""Asynchronous jobs: inference requests that are accepted at once, computed later, and answered exactly once.

The record of a job (`domain/job`) is the source of truth, and changes only by compare-and-swap. A ticket on the queue only
wakes a runner, which then claims the job that `domain/claims` chooses; that need not be the ticket's own.
"""
