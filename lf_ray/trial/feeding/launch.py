"""What sweeps/data.py hands to search: one process with a loader, and no GPU.

The driver's side: torch comes with the session, where a worker makes one.
"""

from functools import partial

from lf_ray.launch import Launch
from lf_ray.trial.launch import open_groups, prepare_data
from lf_ray.trial.ranks.contracts import WorkerSession
from lf_ray.trial.workers import Place


def feeding_session(place: Place) -> WorkerSession:
    """Returns the session of the rank at this place."""
    from lf_ray.trial.feeding.session import FeedingSession

    return FeedingSession(place.config, place.rank, place.world_size)


FEEDING_LAUNCH = Launch(
    prepare_data=prepare_data,
    open_groups=partial(open_groups, make_session=feeding_session),
)
