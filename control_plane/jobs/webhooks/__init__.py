"""Webhooks of jobs by Standard Webhooks 1.0: a signed request to the caller's URL when a job has ended."""
