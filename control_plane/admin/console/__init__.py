"""Web console: static pages on the admin port, which call the admin API with the key that the user enters."""
