"""Values and errors that every capability uses. No I/O; imports nothing else of the control plane."""
