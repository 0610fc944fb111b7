"""Metering: each tenant's usage in requests, rows and compute units, its cost, and the request log.

`metering` adds usage up and stores it; `compute_costs` estimates and charges requests in compute units, `compute_charges`
divides the compute time that Triton's statistics report among them; `reports` summarises usage for the admin API.
"""
