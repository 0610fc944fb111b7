"""Metering: what each tenant has used, in requests, rows and compute units, what it costs, and the request
log.

`metering` adds usage up and stores it; `compute_costs` knows what a request costs, `compute_charges` what
Triton's statistics say it has; `reports` sums it up for people.
"""
