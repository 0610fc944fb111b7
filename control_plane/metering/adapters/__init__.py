"""Stores of usage (SQLite, Redis, and files while a store is unavailable), the request log, and the reader of models' costs."""
