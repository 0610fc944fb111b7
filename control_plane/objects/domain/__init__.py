"""Values that administrators change, one module each. Pure; `stored_objects` is their form in a store, and what they may hold."""
