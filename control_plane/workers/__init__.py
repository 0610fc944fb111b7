"""Worker processes, which answer the data ports, and their parent, which does everything else.

`parent` starts them, restarts those that end, and adds up their counts; `messages` defines the protocol between the two
sides; in a worker, `fleet_follower` and `remote_models` stand in for what only the parent does.
"""
