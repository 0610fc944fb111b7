"""What a server on a node costs beside the same one embedded, and what a node takes at rest."""
