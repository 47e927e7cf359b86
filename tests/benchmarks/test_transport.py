"""Parsing of what the transport benchmark's programs print, and one round of real ranks."""

from pathlib import Path

import pytest

from benchmarks import native, transport, transport_report
from benchmarks.markdown import fill

TYPES = {"float32", "float64", "float16", "bfloat16"}


def test_latencies_of_all_rounds_are_pooled() -> None:
    rounds = [
        "2 lanes-tcp float32 4096 1e-5 1e-5 2e-5\n",
        "2 lanes-tcp float32 4096 3e-5 3e-5 4e-5\n",
        "2 lanes-tcp float32 4096 9e-5 5e-5 5e-5\n",
    ]
    [case] = transport_report.latency_cases(rounds)
    assert case["samples"] == 6
    assert case["p50_seconds"] == pytest.approx(3.5e-5)
    assert case["cpu_seconds"] == pytest.approx(3e-5)
    row = transport_report.latency_table([case]).splitlines()[-1]
    assert row == "| lanes-tcp | float32 | 4096 | 35 / 50 / 30 |"


def test_messages_are_compared_with_a_lane_of_the_same_ranks_and_size() -> None:
    rounds = [
        f"{ranks} {name} float32 4096 {ranks * cpu} {ranks * latency}\n"
        for ranks in (2, 4)
        for name, cpu, latency in (("lanes-memory", 1e-5, 2e-5), ("sends", 2e-5, 3e-5 * ranks))
    ]
    lines = transport_report.message_table(transport_report.latency_cases(rounds)).splitlines()
    assert lines[0] == "|  | bytes | 2 ranks: p50 / CPU | 4 ranks: p50 / CPU |"
    assert lines[2:] == ["| sends | 4096 | 3.00 / 2.00 | 6.00 / 2.00 |"]


def test_sums_are_the_best_of_all_rounds() -> None:
    cases = transport_report.sum_cases(["2 float16 1e9\n4 float16 5e8\n", "2 float16 3e9\n"])
    row = transport_report.sum_table(cases).splitlines()[-1]
    assert row == "| float16 | 3.0 | 0.5 |"


def test_ratios_are_paired_by_round() -> None:
    rounds = [
        f"{name} 40000 1 {scale * factor} {scale} {scale} 1.5\n"
        for scale in (1e-3, 2e-3, 4e-3)
        for name, factor in (("lanes-memory", 1), ("lanes-unix", 2))
    ]
    lines = transport_report.overlap_table(transport_report.overlap_cases(rounds)).splitlines()
    assert lines[2] == "| 40000 | 1 | lanes-memory | 2.00 | 2.00 | 2.00 | x1.50 |"
    assert lines[-1] == "| 40000 | 1 | lanes-memory/lanes-unix | 0.50 | 1.00 | 1.00 | 1.00 |"


@pytest.fixture(scope="module")
def built_programs() -> dict[str, Path]:
    return {name: native.build(name) for name in ("sums", "latencies", "transport")}


def test_every_type_and_transport_is_measured(
    built_programs: dict[str, Path], tmp_path: Path
) -> None:
    sums = transport_report.sum_cases([transport.run(built_programs["sums"])])
    assert {case["type"] for case in sums} == TYPES
    assert all(case["rate"] > 0 for case in sums)
    latencies = transport_report.latency_cases([transport.run(built_programs["latencies"], 3, 1)])
    assert {case["ranks"] for case in latencies} == {3}
    names = {case["transport"] for case in latencies}
    lanes = {"lanes-memory", "lanes-copy", "lanes-unix", "lanes-tcp"}
    assert names == {*lanes, "collectives", "sends"}
    of_memory = {case["type"] for case in latencies if case["transport"] == "lanes-memory"}
    assert of_memory == TYPES
    for case in latencies:
        assert 0 < case["p50_seconds"] <= case["p99_seconds"]
        assert case["cpu_seconds"] >= 0
    overlap = transport_report.overlap_cases(
        [transport.run(built_programs["transport"], tmp_path, 1)]
    )
    assert {case["transport"] for case in overlap} == {"lanes-memory", "lanes-unix", "lanes-tcp"}


def test_the_page_has_a_place_for_every_table() -> None:
    page = (native.ROOT / "docs" / "benchmarks.md").read_text()
    blocks = dict.fromkeys(
        transport_report.blocks({"overlap": [], "latencies": [], "sums": []}), "| new |\n"
    )
    filled = fill(page, blocks, "transport_")
    assert filled.count("| new |") == len(blocks) == 4
    with pytest.raises(ValueError, match="transport_sums"):
        fill(page, {"transport_sums": ""}, "transport_")
