"""Build what the models serve: weights in, verified artefacts out. `python -m python_backends.export ROOT_OR_MODEL_DIR...`

A model folder with a recipe has a `build.py` that offers `RECIPE`, or `RECIPES` for several variants of one model (`recipe.py`). Artefacts
and their `manifest.json` are built in a folder beside and renamed into `<model>/1/` or `<model>/1/<variant>/` together (`publish.py`), so
each is either whole or absent. A recipe runs again when one of its inputs has changed or an artefact is not what its manifest says
(`manifest.py`), and publishes nothing unless its checks pass. A variant is opened with the runtime that will serve it and has to meet its
gate; how fast it is and what memory it takes go into its manifest (`builder.py`).
"""
