"""A response cache of one process, for tests of what asks it."""

from __future__ import annotations

from control_plane.cache.domain.eviction import KeptAnswers
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.fingerprint import Fingerprint
from control_plane.inference.cached_inference import CachedInference
from control_plane.models.fingerprints import Fingerprints


def keeping(*models: str) -> CachedInference:
    """Keeps the answers of these models, as long as nobody loads them anew."""
    fingerprints = Fingerprints()
    fingerprints.change({model: Fingerprint(model.encode().ljust(32), keeps_answers=True) for model in models})
    return CachedInference(ResponseCache(fingerprints, KeptAnswers(1 << 24)))
