"""Python-based backends, which run inside Triton's Python stubs, and the recipes that build the models that
they serve.

`<backend>/model.py` is a Triton *Python-based backend*: Triton finds it as
`<backend-directory>/<backend>/model.py` and uses it for every model with `backend: "<backend>"`. Each
`model.py` is a thin adapter; the decisions are beside it or in `runtime/`, without Triton.

- `onnxruntime/`     any ONNX file, as NVIDIA's native ONNX Runtime backend would serve it
- `text_tokenizer/`  texts in, token ids and attention mask out
- `text_encoder/`    token ids of any lengths in, embeddings out, padded and run together
- `runtime/`         what the backends share
- `export/`          what the recipes `model_repository/<model>/build.py` share, and the command that runs
  them

It runs on Python 3.10 to 3.13 with NumPy 1.26 and 2, because NVIDIA's image brings its own versions. A stub
finds this package in its working directory or among its environment's packages; it ignores PYTHONPATH and
PYTHONDONTWRITEBYTECODE. The package never imports `control_plane`.
"""
