"""Accuracy measures of a variant: cosines with the FP32 reference, and rank correlation with people's
similarity scores. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from python_backends.runtime.execution import Array


def row_cosines(first: Array, second: Array) -> Array:
    """Return the cosines of corresponding rows of two [rows, dimensions], FP64 [rows]; NaN where a row is
    zero.
    """
    # FP64, since FP32 rounding is as large as the differences measured here.
    first, second = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines: Array = np.einsum("ij,ij->i", first, second) / norms
    return cosines


def cosine_agreement(reference: Array, candidate: Array) -> Mapping[str, float]:
    """Compare two [texts, dimensions]: the cosine at the first percentile, the median and the minimum; NaN if
    any is NaN.
    """
    cosines = row_cosines(reference, candidate)
    p1, p50 = np.percentile(cosines, [1, 50])
    return {
        "texts": len(cosines),
        "cosine_p1": round(float(p1), 7),
        "cosine_p50": round(float(p50), 7),
        "cosine_min": round(float(cosines.min()), 7),
    }


def similarity_agreement(scores: Sequence[float], reference: Array, candidate: Array) -> Mapping[str, float]:
    """Rank correlation of cosines [pairs] with people's scores, beside the reference's; a negative
    `relative_loss` is a gain.
    """
    ours, fp32 = spearman(scores, candidate), spearman(scores, reference)
    return {
        "pairs": len(scores),
        "spearman": round(ours, 6),
        "spearman_fp32": round(fp32, 6),
        "relative_loss": round((fp32 - ours) / fp32, 6),
    }


def spearman(first: Sequence[float] | Array, second: Sequence[float] | Array) -> float:
    """Return Spearman's rank correlation; equal values get their mean rank. NaN if a value is NaN or all
    values are equal.
    """
    if np.isnan(first).any() or np.isnan(second).any():
        return float("nan")
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Sequence[float] | Array) -> Array:
    _, inverse, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Array = (last - (counts - 1) / 2)[inverse]
    return ranks
