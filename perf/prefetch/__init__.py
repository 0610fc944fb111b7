"""Loading models ahead of demand: what patterns of requests foretell, beside nothing and a clairvoyant, over traces.

    python -m perf.prefetch [--trace REQUESTS.csv.gz] [--seeds N] [--cases ...] [--forecasts ...]

Without files all traces are this project's own; `--trace` takes GenTD26's requests. Nothing is served: production's placement runs in
`control_plane/fleet/simulation`, with the prefetches of `perf/prefetch/router` beside it.
"""
