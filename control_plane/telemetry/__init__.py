"""Telemetry: counts of requests in each process, the metrics page for Prometheus, traces and the log.

`request_counts` has the counts of one process, `adapters/prometheus` renders their sum, `adapters/logs` formats the log.
"""
