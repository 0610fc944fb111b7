"""What models' configurations say, as Triton reports them, and the checks and choices that rest on it."""
