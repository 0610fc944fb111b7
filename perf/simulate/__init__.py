"""Which server, and what has to go: production's decisions beside others and the clairvoyant bound, over traces.

    python -m perf.simulate [--trace REQUESTS.csv.gz] [--load-times MS.csv.gz] [--seeds N] [--cases ...] [--policies ...]

Without files all traces are this project's own. `--trace` takes GenTD26's requests, `--load-times` its load times. Nothing is
served: `control_plane/fleet/simulation` runs what `tidegate` decides by. Writes perf/results/simulate.json, .md and .png. To try one
thing quickly: `--cases 8x5 --policies Tidegate --seeds 1 --output /tmp/somewhere`.
"""
