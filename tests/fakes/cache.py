"""Response cache of one process, for tests of its callers."""

from __future__ import annotations

from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.fingerprint import Fingerprint
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.models.fingerprints import Fingerprints


def keeping(*models: str) -> CachedInference:
    """Return a response cache that caches these models, as long as none of them is loaded anew."""
    fingerprints = Fingerprints()
    fingerprints.change({model: Fingerprint(model.encode().ljust(32), is_cacheable=True) for model in models})
    return CachedInference(ResponseCache(fingerprints, EvictingCache(1 << 24)))
