"""Where jobs are kept and queued (SQLite, Redis, RabbitMQ, folders), and gateways that compute for job workers."""
