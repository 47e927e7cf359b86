"""A profile and a cost model that commands of `tf-libra` read."""

import pytest

import tf_libra

PROFILE = tf_libra.BackwardProfile.from_arrays(
    [4_000_000, 1000, 6_000_000, 1000, 9_000_000, 500_000], [4e-3, 1e-4, 5e-3, 0.0, 3e-3, 2e-3]
)
COST = tf_libra.ContentionModel(8, 1e-5, (1.0, 0.08), (2e9, 1.2e9, 0.4), (2.4e9, 1.3e9, 0.5))


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "profile.json").write_text(PROFILE.to_json())
    (tmp_path / "cost.json").write_text(COST.to_json())
    return [f"--profile={tmp_path}/profile.json", f"--cost={tmp_path}/cost.json"]
