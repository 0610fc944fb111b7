"""Counts of requests in each process, and the metrics page that Prometheus reads.

`request_counts` is what a process has counted, `adapters/prometheus` renders the sum, `adapters/logs` the
log's lines.
"""
