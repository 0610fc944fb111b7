"""What sends requests: closed loops, wrk and h2load, and the requests and texts themselves."""
