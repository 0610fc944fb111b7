"""What only the gateway as a whole has, wired: `application` is `tidegate serve`, the others are its parts."""
