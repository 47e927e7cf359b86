from pathlib import Path

import pytest

from benchmarks.gpu import nccl_log
from benchmarks.gpu.tuner import StandIn, Tuner, build


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("plugin"))


def test_each_all_reduce_of_a_step_gets_its_channels(library: Path) -> None:
    tuner = Tuner(str(library), num_ranks=2)
    nccl = StandIn(tuner, 2)
    before = tuner.counters()
    # Two of one size, distinguished by their order, over three steps; the second one is cut short.
    for requested in ((1, 32, 4), (1, 32), (1, 32, 4)):
        tuner.begin_step([(1024, 1), (4096, 32), (1024, 4)])
        sizes = (1024, 4096, 1024)[: len(requested)]
        logged = nccl_log.parse("\n".join(nccl.line(size) for size in sizes))
        expected = [
            nccl_log.RequestedChannels(*channels) for channels in zip(sizes, requested, strict=True)
        ]
        assert nccl_log.compare(expected, logged)["proven"]
    after = tuner.counters()
    assert after["applied"] - before["applied"] == 8
    assert after["passed_over"] == before["passed_over"]
    assert after["out_of_order"] == before["out_of_order"]


def test_without_a_plan_nccl_chooses(library: Path) -> None:
    tuner = Tuner(str(library), num_ranks=2)
    nccl = StandIn(tuner, 2)
    tuner.begin_step([(1024, 8)])
    assert nccl_log.parse(nccl.line(1024))[0].channels == 8
    before = tuner.counters()["no_plan"]
    tuner.begin_step([])
    assert nccl_log.parse(nccl.line(1024))[0].channels == 1
    assert tuner.counters()["no_plan"] == before + 1


def test_a_rejected_plan_is_reported(library: Path) -> None:
    tuner = Tuner(str(library), num_ranks=2)
    with pytest.raises(ValueError, match=r"num_channels\[1\] must be from 1"):
        tuner.begin_step([(1024, 8), (1024, 0)])


def test_without_a_compiler_that_works_the_text_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(RuntimeError, match=r"false.*status 1"):
        build(tmp_path)
