"""Meeting as far as a process alone comes; how ranks meet and differ is in jobs' tests."""

from collections.abc import Iterator

import horovod.tensorflow as hvd
import pytest
from horovod.common import elastic

from tests.runtime.alone import ONE
from tf_libra import config, strategies
from tf_libra.internal.process_state import STATE
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime.rendezvous import Rendezvous


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    STATE.reset()
    yield
    STATE.reset()


@pytest.fixture
def state(horovod: None) -> Iterator[elastic.ObjectState]:
    """The elastic state that `hvd.elastic.run` notifies of other hosts while it runs."""
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, batch=0)
    elastic.notification_manager.register_listener(state)
    yield state
    elastic.notification_manager.remove_listener(state)


def rendezvous_with(**options: object) -> tuple[Rendezvous, RunReporter]:
    resolved = config.resolve(options)
    return Rendezvous("train_step", "module.train_step", resolved), RunReporter(resolved)


def test_rendezvous_before_hvd_init_raises() -> None:
    rendezvous, reporter = rendezvous_with()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"call hvd.init\(\)"):
            rendezvous.join(reporter)
        assert rendezvous.control is None
        assert not rendezvous.is_alone and not rendezvous.is_over


@pytest.mark.usefixtures("horovod")
def test_single_process_runs_alone_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rendezvous, reporter = rendezvous_with()
    rendezvous.join(reporter)
    assert rendezvous.is_alone
    assert rendezvous.control is None
    assert not rendezvous.is_over
    assert "one process: train_step runs as it is" in caplog.text


@pytest.mark.usefixtures("horovod")
def test_default_thread_counts_are_the_backends() -> None:
    rendezvous, reporter = rendezvous_with()
    rendezvous.join(reporter)
    lanes = rendezvous.options.backend
    assert rendezvous.options.strategy == lanes.default_threads(config.resolve({}).strategy)
    requested, reporter = rendezvous_with(strategy=strategies.Libra(threads=(1, 3)))
    requested.join(reporter)
    assert requested.options.strategy.allowed_threads == (1, 3)


def test_elastic_reset_ends_the_rendezvous(
    state: elastic.ObjectState,
) -> None:
    rendezvous, reporter = rendezvous_with(plan=ONE)
    rendezvous.join(reporter)
    assert rendezvous.is_alone and not rendezvous.is_over
    state.on_reset()
    assert rendezvous.is_over
    rendezvous.end()
    assert not rendezvous.is_over and not rendezvous.is_alone
    assert rendezvous.user_plan == ONE
    rendezvous.join(reporter)
    assert rendezvous.is_alone and not rendezvous.is_over


def test_every_rendezvous_is_notified_of_a_reset_once(state: elastic.ObjectState) -> None:
    rendezvous, reporter = rendezvous_with()
    for _ in range(3):
        rendezvous.join(reporter)
    assert len(state._reset_callbacks) == 1
    other, reporter = rendezvous_with()
    other.join(reporter)
    state.on_reset()
    assert rendezvous.is_over and other.is_over
