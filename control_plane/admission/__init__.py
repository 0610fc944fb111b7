"""Admission control: whether a request may go on now, by its tenant's limits and by what its model has to do.

`admission` issues permits; `tenant_limits` holds rates, quotas and concurrency, `rate_leases` shares a rate
between processes, `concurrency_limiter` queues fairly for a model's slots and sheds what would be late.
"""
