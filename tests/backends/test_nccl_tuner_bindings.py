"""The C functions of NCCL's tuner plugin, as Python calls them; NCCL itself does not call."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tf_libra.backends import nccl_environment, nccl_tuner_bindings
from tf_libra.backends.nccl_tuner_bindings import COUNTS, TunerLibrary


@pytest.fixture
def plugin() -> Iterator[TunerLibrary]:
    loaded = nccl_tuner_bindings.load(nccl_environment.PATH)
    loaded.clear_plan()
    yield loaded
    loaded.clear_plan()


def test_missing_plugin_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"missing\.so"):
        nccl_tuner_bindings.load(tmp_path / "missing.so")


def test_plugin_is_opened_once() -> None:
    assert nccl_tuner_bindings.load(nccl_environment.PATH) is nccl_tuner_bindings.load(
        nccl_environment.PATH
    )


def test_active_plan_has_a_counter_per_all_reduce(plugin: TunerLibrary) -> None:
    assert plugin.applied() == ()
    for num_all_reduces in (3, 1):
        plugin.set_plan(8, True, [(4096 * (i + 1), 1 << 20, 2) for i in range(num_all_reduces)])
        plugin.begin_step()
        assert plugin.applied() == (0,) * num_all_reduces
    plugin.clear_plan()
    assert plugin.applied() == ()


@pytest.mark.parametrize(
    ("num_ranks", "all_reduce", "message"),
    [
        (0, (4096, 4096, 2), "num_ranks"),
        (8, (4096, 4096, 0), r"num_channels\[0\] must be from 1"),
        (8, (4096, 4096, 1 << 20), r"num_channels\[0\] must be from 1"),
    ],
)
def test_plan_that_the_plugin_rejects_is_named_and_not_active(
    plugin: TunerLibrary, num_ranks: int, all_reduce: tuple[int, int, int], message: str
) -> None:
    plugin.set_plan(8, False, [(4096, 4096, 2)] * 2)
    with pytest.raises(ValueError, match=message):
        plugin.set_plan(num_ranks, False, [all_reduce])
    assert plugin.applied() == (0, 0)


def test_counts_have_names_and_do_not_move_by_themselves(plugin: TunerLibrary) -> None:
    before = plugin.counts()
    assert tuple(before) == COUNTS
    plugin.set_plan(8, False, [(4096, 4096, 2)])
    assert plugin.counts() == before
