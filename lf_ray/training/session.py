"""The session that a training's ranks hold."""

from collections.abc import Mapping

from lf_ray.runtime.parts import Loader
from lf_ray.runtime.session import Session


class TrainingSession(Session):
    """A session whose first request is its last: there is nothing to go back to after it."""

    def _cache_lag(self, loader: Loader, limit_s: float) -> str:
        """Returns at once: nothing is compared, so the cache is filled beside the first epoch."""
        return ""

    def reset(self) -> Mapping[str, float]:
        """Leaves the trained weights as they are."""
        return {}
