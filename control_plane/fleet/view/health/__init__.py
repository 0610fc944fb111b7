"""Health of servers and replicas as this process's own requests show it: doubts, ejections, outages, recalled requests."""
