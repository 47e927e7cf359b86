import pytest

from benchmarks.gpu.nccl_log import LoggedCollective, RequestedChannels, compare, parse

# Lines as NCCL 2.28 writes them, with what stands around them.
LOG = """\
host:71:71 [0] NCCL INFO NCCL_NTHREADS set by environment to 128.
host:71:88 [0] NCCL INFO Assigned NET plugin Socket to comm
host:71:71 [0] NCCL INFO Broadcast: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
host:71:71 [0] NCCL INFO AllReduce: 16777216 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7}
host:71:71 [0] NCCL INFO AllReduce: 4 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}
host:71:71 [0] NCCL INFO AllReduce: 16777216 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={4..5}
"""
SIZE = 16777216


def test_collectives_are_found_among_other_lines() -> None:
    assert parse(LOG) == (
        LoggedCollective("Broadcast", 4, "RING", "LL", 1),
        LoggedCollective("AllReduce", SIZE, "RING", "SIMPLE", 8),
        LoggedCollective("AllReduce", 4, "TREE", "LL", 1),
        LoggedCollective("AllReduce", SIZE, "RING", "SIMPLE", 2),
    )


def test_older_releases_do_not_say_channels() -> None:
    (found,) = parse("h:1:1 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo 1 proto 2 time 12.5\n")
    assert found == LoggedCollective("AllReduce", 1024, "1", "2", None)
    verdict = compare([RequestedChannels(1024, 4)], [found])
    assert not verdict["proven"]
    assert verdict["reason"] == "this release of NCCL does not log channels"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NCCL INFO AllReduce: many Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7}",
        "NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x1 count 4 datatype 7 op 0",
        "AllReduce: 16 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7}",
    ],
)
def test_other_lines_are_no_collectives(line: str) -> None:
    assert parse(line) == ()


def test_requested_channels_are_proven() -> None:
    verdict = compare([RequestedChannels(SIZE, 8), RequestedChannels(SIZE, 2)], parse(LOG))
    assert verdict["proven"] and verdict["reason"] == ""
    assert [row["as_requested"] for row in verdict["rows"]] == [True, True]


def test_equal_sizes_are_distinguished_by_order() -> None:
    verdict = compare([RequestedChannels(SIZE, 2), RequestedChannels(SIZE, 8)], parse(LOG))
    assert not verdict["proven"]
    assert verdict[
        "reason"
    ] == f"2 of 2 used another number, the first 8 instead of 2 for {SIZE}" + (" bytes")


def test_choices_of_nccl_are_shown_and_prove_nothing() -> None:
    verdict = compare([RequestedChannels(SIZE, None), RequestedChannels(SIZE, 2)], parse(LOG))
    assert verdict["proven"]
    assert [row["as_requested"] for row in verdict["rows"]] == [None, True]
    assert verdict["rows"][0]["used"] == 8
    alone = compare([RequestedChannels(SIZE, None), RequestedChannels(SIZE, None)], parse(LOG))
    assert alone["reason"] == "no channels were requested"


@pytest.mark.parametrize("times", [1, 3])
def test_a_log_of_other_all_reduces_proves_nothing(times: int) -> None:
    verdict = compare([RequestedChannels(SIZE, 8)] * times, parse(LOG))
    assert not verdict["proven"]
    assert verdict["reason"].startswith(
        f"the log holds 2 all-reduces of these sizes, not the {times}"
    )
