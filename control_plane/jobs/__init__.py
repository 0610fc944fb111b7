"""Asynchronous jobs: inference requests that are accepted at once, computed later, and answered exactly once.

The record of a job (`domain/job`) is the truth, and changes by compare-and-swap only. A ticket on the queue is
no more than a wake-up: whoever takes one claims the job that is best by `domain/claims`.
"""
