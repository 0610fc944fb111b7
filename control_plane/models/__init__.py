"""Models of one Triton: where their files come from, loads and unloads, and what is loaded for certain.

`model_service` carries loads out, `prepared_load` around the call to Triton; `loaded_contents` and
`fingerprints` say what is loaded; `tiers` fetches models from stores to this machine; `builds` makes
variants.
"""
