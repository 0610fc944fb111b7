"""Build what the models serve: weights in, verified artefacts out. `python -m python_backends.export ROOT_OR_MODEL_DIR...`

A model folder with a recipe has a `build.py` that offers `RECIPE` (`recipe.py`). Its artefacts and their `manifest.json` are built in a
folder beside and renamed into `<model>/1/` together (`publish.py`), so a version directory is either whole or absent. A recipe runs again
when one of its inputs has changed or an artefact is not what its manifest says (`manifest.py`), and publishes nothing unless its checks
pass.
"""
