"""Where a fleet keeps its lease, memory and requests to the leader (a process of its own, or Redis), and what lists its servers."""
