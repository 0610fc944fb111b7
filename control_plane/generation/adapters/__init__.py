"""Chat templates, rendered by Jinja in a process of their own."""
