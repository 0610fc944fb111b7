"""Builds models from weights to verified artefacts: `python -m python_backends.export ROOT_OR_MODEL_DIR...`

A model folder with a recipe has a `build.py` that defines `RECIPE`, or `RECIPES` for several variants of a
model (`recipe.py`). Artefacts and their `manifest.json` are built in a staging folder and renamed into
`<model>/1/` or `<model>/1/<variant>/` together (`publish.py`), so a build is either complete or absent. A
recipe runs again when one of its inputs has changed or an artefact differs from its manifest (`manifest.py`),
and publishes nothing unless its checks pass. A variant is tried with the runtime that will serve it and must
pass its accuracy gate; its latencies and memory are recorded in its manifest (`builder.py`).

A recipe's inputs include the bytes of the modules that it lists as `sources`, such as `bert_graph.py`: even a
changed comment in one of them makes the variants built with it stale.
"""
