"""Health of servers and replicas: outlier ejection, and replicas that answer nobody. Pure."""
