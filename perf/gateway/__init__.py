"""A hop beside nginx's and Python proxies'; `python -m perf.gateway`."""
