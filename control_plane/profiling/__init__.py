"""`tidegate profile`: says where the time of a model's requests goes, through a gateway that runs."""
