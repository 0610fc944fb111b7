"""Health of servers and replicas: outlier ejection, and detection of replicas that answer no requests. Pure."""
