"""What `tidegate tune` works with: a Triton for each candidate, perf_analyzer, configuration files, reports."""
