"""Where usage is kept (SQLite, Redis, files until a store answers), the request log, and where models' costs are read."""
