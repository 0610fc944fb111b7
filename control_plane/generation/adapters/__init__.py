"""Chat templates, rendered by Jinja in a separate process."""
