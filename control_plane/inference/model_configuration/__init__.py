"""Models' configurations as Triton reports them, and the checks of requests against them."""
