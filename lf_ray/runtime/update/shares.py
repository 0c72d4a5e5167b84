"""Who updates what: a rank its own part of every bucket, or everything.

Updating a part each costs a rank that share of the update's time; the new weights then travel,
while later parts are being updated and, pipelined, beside the next prefix.

Shape suffix: N elements of the flat buffers.
"""

from collections.abc import Sequence

from torch import Tensor

from lf_ray.runtime.bucket_plan import BucketPlan, own_part
from lf_ray.runtime.update.collectives import Collective


class Shares:
    """One rank's part of every bucket.

    Args:
        plan: whose buckets are divided; every bucket's length must be a multiple of `num_ranks`.
        collective: how parts travel.

    Attributes:
        parts: first and one past the last element of this rank's part, a bucket each.
    """

    def __init__(self, plan: BucketPlan, rank: int, num_ranks: int, collective: Collective) -> None:
        self._plan = plan
        self._collective = collective
        self.parts = tuple(
            own_part(bucket.first, bucket.last, rank, num_ranks) for bucket in plan.buckets
        )

    def sum_over_ranks(self, total_1: Tensor) -> None:
        """Sums one number over the ranks, in place."""
        self._collective.sum_now(total_1)

    def send(self, number: int, buffers: Sequence[Tensor]) -> None:
        """Begins to bring every rank's part of a bucket to all ranks."""
        bucket = self._plan.buckets[number]
        for values_N in buffers:
            self._collective.start_gather(values_N[bucket.first : bucket.last])

    def wait(self) -> None:
        """Waits for what was sent."""
        self._collective.wait()

    def collect(self, buffers: Sequence[Tensor]) -> None:
        """Brings every rank's parts of whole buffers to all ranks."""
        for number in range(len(self.parts)):
            self.send(number, buffers)
        self.wait()
