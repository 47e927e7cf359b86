"""The parts of Horovod that the package needs, as far as one process can test them."""

from collections.abc import Iterator

import horovod.tensorflow as hvd
import pytest
from horovod.common import elastic
from horovod.common.exceptions import HorovodInternalError

from tf_libra.coordination import horovod_job


def test_job_is_known_once_horovod_is_initialized() -> None:
    with pytest.raises(ValueError, match=r"call hvd\.init\(\)"):
        horovod_job.world()


@pytest.mark.usefixtures("horovod")
def test_next_job_is_another_even_for_the_same_rank_of_as_many() -> None:
    job = horovod_job.HorovodJob()
    first = job.world(1.0)
    hvd.init()  # changes nothing
    assert not job.is_another(first)
    hvd.shutdown()
    assert not job.is_another(first)  # there is no other yet
    hvd.init()
    assert job.is_another(first)
    assert not job.is_another(job.world(1.0))


def test_lost_rank_is_what_horovod_recovers_from() -> None:
    error = horovod_job.internal_error("rank 1 is gone")
    assert isinstance(error, HorovodInternalError)
    assert str(error) == "rank 1 is gone"


@pytest.fixture
def state() -> Iterator[elastic.ObjectState]:
    """A state that `hvd.elastic.run` would keep informed."""
    state = elastic.ObjectState(bcast_object=lambda value: value, get_rank=lambda: 0, epoch=0)
    elastic.notification_manager.register_listener(state)
    yield state
    elastic.notification_manager.remove_listener(state)


class Listener:
    def __init__(self) -> None:
        self.num_calls = 0

    def reset(self) -> None:
        self.num_calls += 1


def test_elastic_reset_is_notified_once(state: elastic.ObjectState) -> None:
    listener = Listener()
    for _ in range(2):  # as every job after a reset does
        horovod_job.call_on_reset(listener.reset)
    state.on_reset()
    assert listener.num_calls == 1
    state.on_reset()
    assert listener.num_calls == 2


def test_job_is_elastic_while_a_state_listens(state: elastic.ObjectState) -> None:
    assert horovod_job.is_elastic()
    elastic.notification_manager.remove_listener(state)
    assert not horovod_job.is_elastic()
    horovod_job.call_on_reset(lambda: None)  # no state to notify
    elastic.notification_manager.register_listener(state)
