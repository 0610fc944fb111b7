"""Model sharding: ensembles whose steps the gateway itself carries out, so that their parts may be on different servers.

`domain/plan` plans the steps of an ensemble, `steps` carries them out; `inference/sharded_models` sends each as a request.
"""
