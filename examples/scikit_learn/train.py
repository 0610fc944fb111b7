"""Train an estimator that tells three irises apart, and write it to where its model.py expects it."""

from pathlib import Path

import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

PATH = Path(__file__).parent / "models/iris/1/estimator.joblib"

irises = load_iris()
estimator = make_pipeline(StandardScaler(), LogisticRegression())
estimator.fit(irises.data, irises.target_names[irises.target])  # so that it answers names
joblib.dump(estimator, PATH)
print(f"right about {estimator.score(irises.data, irises.target_names[irises.target]):.2f} of them; wrote {PATH.name}")
