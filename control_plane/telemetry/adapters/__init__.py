"""The metrics page for Prometheus, the counters of one process, and the forms of the log."""
