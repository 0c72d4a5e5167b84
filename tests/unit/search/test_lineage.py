"""What makes a sweep another one: the code's own hash among it."""

import hashlib

from lf_ray.search.start.lineage import source_hash


def test_the_source_hash_is_of_something_and_stays() -> None:
    assert source_hash() == source_hash()
    assert source_hash() != hashlib.sha256().hexdigest()[:12]
