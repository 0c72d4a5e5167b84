"""The session that a training's ranks hold."""

from collections.abc import Mapping

from lf_ray.runtime.session import Session


class TrainingSession(Session):
    """A session whose first request is its last: there is nothing to go back to after it."""

    def reset(self) -> Mapping[str, float]:
        """Leaves the trained weights as they are."""
        return {}
