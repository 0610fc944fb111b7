"""Health of servers and replicas, by what this process's own requests see: doubts, ejection, outages, recalls."""
