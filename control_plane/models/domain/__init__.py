"""Values of models: descriptions of their folders, builds, served variants. Pure; `description` is where to start."""
