"""Models of one Triton: the sources of their files, loads and unloads, and fingerprints of what is loaded.

`model_service` carries out loads, with `prepared_load` around the call to Triton; `loaded_contents` and `fingerprints`
track what is loaded; `tiers` fetches models from stores to this machine; `builds` builds variants.
"""
