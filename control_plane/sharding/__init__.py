"""Model sharding: ensembles whose steps the gateway carries out itself, so that their parts may be on different servers.

`domain/plan` reads which steps there are, `steps` carries them out; `inference/sharded_models` sends each as a request.
"""
