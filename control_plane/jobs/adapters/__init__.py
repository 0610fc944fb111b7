"""Stores, queues and spools of jobs (SQLite, Redis, RabbitMQ, folders), and the client by which job workers have gateways
compute.
"""
