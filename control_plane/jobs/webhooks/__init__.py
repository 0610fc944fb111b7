"""Webhooks of jobs by Standard Webhooks 1.0: when a job has ended, its caller's URL is told."""
