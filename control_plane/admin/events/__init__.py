"""Events as the admin API streams them: what happens here, logged ones, and who may subscribe to which."""
