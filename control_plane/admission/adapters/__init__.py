"""What processes of a gateway share to keep limits together: token buckets in Redis, demand in Redis or SQLite."""
