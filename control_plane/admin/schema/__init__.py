"""Bodies of requests and responses: their fields, and how OpenAPI and errors describe them."""
