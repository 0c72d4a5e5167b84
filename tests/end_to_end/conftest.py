"""Lets the group's contract, which lives in the package, say what it got when it fails."""

import pytest

pytest.register_assert_rewrite("lf_ray.testing.group_contract")
