"""Worker processes: several that answer the data ports, and their parent, which keeps all the rest.

`parent` starts them, restarts those that end, and sums their counts; `messages` is all that the two sides
say to each other; `fleet_follower` and `remote_models` stand in a worker for what only the parent does.
"""
