"""What a tenant that floods a model costs another; `python -m perf.tenants`."""
