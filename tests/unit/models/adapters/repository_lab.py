"""Test bench of `models/adapters/managed_repository`."""

from __future__ import annotations

import os
from pathlib import Path

from control_plane.models.adapters.managed_repository import ManagedRepository


def ensemble_of(*models: str) -> str:
    steps = ", ".join(f'{{ model_name: "{name}" model_version: -1 }}' for name in models)
    return f'platform: "ensemble" ensemble_scheduling {{ step [ {steps} ] }}'


class Lab:
    """Test bench: two source folders and the repository over them."""

    def __init__(self, folder: Path) -> None:
        self.models, self.ensembles, self.state_dir = folder / "models", folder / "ensembles", folder / "state"
        self.models.mkdir()
        self.ensembles.mkdir()
        self.repository = self.make()

    def make(self, config_name: str = "") -> ManagedRepository:
        return ManagedRepository([self.models, self.ensembles], self.state_dir, config_name=config_name)

    def add(self, name: str, *files: str, config: str | None = 'backend: "onnxruntime"', source: Path | None = None) -> Path:
        model = (source or self.models) / name
        model.mkdir()
        if config is not None:
            (model / "config.pbtxt").write_text(config)
        for file in files:
            (model / file).parent.mkdir(parents=True, exist_ok=True)
            (model / file).touch()
        return model

    def add_ensemble(self, name: str, *steps: str) -> Path:
        return self.add(name, config=ensemble_of(*steps), source=self.ensembles)

    def placed(self) -> list[str]:
        """Return every path that Triton sees, without the models' own folders."""
        root = self.state_dir / "triton/repository"
        return sorted(str(path.relative_to(root)) for path in root.glob("*/**/*"))

    def placed_models(self) -> list[str]:
        return sorted(os.listdir(self.state_dir / "triton/repository"))
