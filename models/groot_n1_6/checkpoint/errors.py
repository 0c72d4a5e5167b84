"""The one error of this package; `lf_ray` wraps it in its own."""


class CheckpointFormatError(ValueError):
    """A checkpoint that can't be loaded, or is of another model. The message has four parts."""


def four_parts(doing: str, rule: str, got: str, change: str) -> str:
    """Returns a message from what was being done, the rule, what was found, what to change."""
    return f"While {doing}: {rule}. Got {got}. {change}"
