"""What batches lack because frames could not be had. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Skipped:
    """Samples that others stand in for, and why.

    Attributes:
        num_samples: that were replaced.
        frames: that could not be had, each as words that name file and frame.
    """

    num_samples: int = 0
    frames: frozenset[str] = frozenset()

    def __add__(self, other: "Skipped") -> "Skipped":
        """Returns both together."""
        return Skipped(self.num_samples + other.num_samples, self.frames | other.frames)


NONE_SKIPPED = Skipped()
