"""Worker processes as the parent starts them, and the socket between both."""
