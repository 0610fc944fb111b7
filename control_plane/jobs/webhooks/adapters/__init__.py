"""HTTP client for webhooks that connects only to permitted addresses, and its name resolver."""
