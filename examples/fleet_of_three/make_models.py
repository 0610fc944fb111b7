"""Make eight models, store_1 to store_8, of the model.py and config.pbtxt beside this file."""

import shutil
from pathlib import Path

HERE = Path(__file__).parent

for number in range(1, 9):
    model = HERE / f"models/store_{number}"
    (model / "1").mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "config.pbtxt", model)
    shutil.copy(HERE / "model.py", model / "1")
print("made 8 models of 24 MiB each")
