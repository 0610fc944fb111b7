"""What is wanted of the fleet's models, and what has been measured of them."""
