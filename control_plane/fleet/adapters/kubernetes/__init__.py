"""The Kubernetes API, as a pod sees it: the few calls that a gateway needs, over httpx.

The official client is not used: it takes 50 MB and a second to import for two calls, and its watch retries by itself
without a bound on silence.
"""
