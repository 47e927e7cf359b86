"""The papers' evaluations on few tensors, and the papers' parameters themselves."""

import dataclasses
import json
import xml.etree.ElementTree
from pathlib import Path

import pytest

import tf_libra
from benchmarks import networks
from benchmarks.gpu import documents
from benchmarks.markdown import fill
from benchmarks.paper import document, evaluation, parameters, sensitivity
from benchmarks.paper.__main__ import run
from benchmarks.paper.gpu import of_gpu


def small(name="Small", library_threads=4):
    profile = tf_libra.BackwardProfile.from_arrays(
        [4_000_000, 1000, 6_000_000, 1000, 9_000_000, 500_000], [4e-3, 1e-4, 5e-3, 0.0, 3e-3, 2e-3]
    )
    cost = tf_libra.ContentionModel(8, 1e-5, (1.0, 0.08), (2e9, 1.2e9, 0.4), (2.4e9, 1.3e9, 0.5))
    workload = parameters.Workload("Tiny", 16, 7e-3, profile, cost)
    return parameters.Parameters(
        name=name,
        sources=("made up",),
        library_threads=library_threads,
        threads=(1, 2, 4, 8),
        cycle_seconds=1e-3,
        buffer_bytes=8 * 2**20,
        workloads=(workload, dataclasses.replace(workload, name="Other", batch=8)),
        max_groups=4,
        chunks=30,
    )


def test_evaluation_of_libra_matches_the_paper():
    found = parameters.of_libra()
    assert [w.batch for w in found.workloads] == [32, 32, 128, 32]
    for workload in found.workloads:
        cost = workload.cost
        assert cost.num_workers == 8
        # Fig. 1(a).
        assert 1 / float(cost.compute_rate(2048)) == pytest.approx(1.38)
        assert float(cost.compute_rate(0)) == 1
        assert float(cost.exclusive_rate(4096)) == pytest.approx(50e9 / 8, rel=1e-3)
    rate = parameters.sustained_share() * 14e12
    # Fig. 1(b), batch 8.
    assert parameters.figure_1b(rate, cost, batch=8) == pytest.approx(0.86, abs=1e-3)
    assert found.max_groups == 10
    assert found.chunks == 150


def test_asc_wfbp_has_the_times_of_the_paper():
    [resnet] = [w for w in parameters.of_asc_wfbp() if w.name == "ResNet-152"]
    assert resnet.forward_seconds == pytest.approx(0.091, rel=0.01)
    assert float(resnet.profile.compute_after[0]) == pytest.approx(0.182, rel=0.01)
    cost = parameters.asc_cost()
    assert cost.startup_seconds == pytest.approx(1.4e-3)
    # Which is why everything is merged.
    assert resnet.profile.compute_seconds.max() == pytest.approx(1.05e-3, rel=0.01)
    assert float(cost.exclusive_seconds(1, 1)) == pytest.approx(1.7e-9)


def test_largest_speedups_are_those_of_table_5():
    rows = {row.network: row for row in evaluation.asc_wfbp(parameters.of_asc_wfbp())}
    assert rows.keys() == evaluation.ASC_PAPER.keys()
    for name, row in rows.items():
        paper = evaluation.ASC_PAPER[name]
        assert row.largest_speedup == pytest.approx(paper.largest_speedup, rel=0.02)
        assert row.speedup <= row.largest_speedup
        assert row.asc_wfbp <= row.mg_wfbp * (1 + 1e-9) <= row.wfbp * (1 + 2e-9)


def test_two_concurrent_all_reduces_send_no_more_than_the_link_carries():
    per_byte = float(parameters.asc_cost().exclusive_seconds(1, 1))
    gamma = parameters.asc_gamma()
    assert parameters.ASC_GAMMA < gamma <= 2
    # Bits of a gradient byte, sent and received, over the seconds that two concurrent ones take.
    assert 2 * 8 / (gamma / 2 * per_byte) == pytest.approx(parameters.ASC_BANDWIDTH)


@pytest.fixture(scope="module")
def second_set():
    """Fitted to a claim of the paper."""
    return parameters.of_published_throughputs()


def test_published_throughputs_are_what_the_second_set_computes_in(second_set):
    published = {"ResNet-152": 167, "VGG16": 249}
    rates = []
    for workload in second_set.workloads:
        alone = workload.forward_seconds + float(workload.profile.compute_after[0])
        if workload.name in published:
            assert workload.batch / alone == pytest.approx(published[workload.name])
        cost = workload.cost
        # p is the same multiple of q for all threads, and more.
        ratios = cost.exclusive_rate(second_set.threads) / cost.overlapped_rate(second_set.threads)
        assert ratios == pytest.approx([ratios[0]] * len(ratios))
        rates.append(ratios[0])
    assert min(rates) == max(rates) > 1
    claims = evaluation.claims(evaluation.on_testbed(second_set), evaluation.largest(second_set))
    [fitted] = [claim for claim in claims if claim.text == parameters.FITTED_CLAIM]
    assert fitted.ours == pytest.approx(fitted.paper, abs=0.05)
    table = document.claims(claims, (parameters.FITTED_CLAIM,))
    assert table.count("(fitted)") == 1


def test_rows_are_what_simulate_says():
    found = small()
    workload = found.workloads[0]
    rows = {row.strategy: row for row in evaluation.compare(found, workload)}
    assert list(rows) == ["SynEASGD", "Horovod", "MG-WFBP", "LIBRA-M", "LIBRA", "MG-CF"]
    plan = tf_libra.make_plan(workload.profile, workload.cost, found.strategies()["LIBRA"])
    libra = rows["LIBRA"]
    assert libra.backward_seconds == plan.predicted_seconds
    assert libra.throughput == pytest.approx(8 * 16 / (7e-3 + plan.predicted_seconds))
    assert libra.computation_seconds + libra.residual_seconds == pytest.approx(
        libra.backward_seconds
    )
    assert rows["SynEASGD"].computation_seconds == pytest.approx(14.1e-3)
    assert rows["MG-CF"].backward_seconds < rows["MG-WFBP"].backward_seconds
    alone = (7e-3 + 14.1e-3) / (7e-3 + plan.predicted_seconds)
    assert evaluation.per_node(found, libra) == pytest.approx(alone)


def test_claims_are_ranges_over_networks():
    found = small()
    rows = evaluation.on_testbed(found)
    largest = evaluation.compare(found, found.workloads[0], 64)
    claims = evaluation.claims(rows, largest)
    first = claims[0]
    gains = [
        100 * (libra.throughput / other.throughput - 1)
        for libra, other in zip(
            [r for r in rows if r.strategy == "LIBRA"],
            [r for r in rows if r.strategy == "SynEASGD"],
            strict=True,
        )
    ]
    assert first.ours == pytest.approx((min(gains), max(gains)))
    assert "64 nodes" in claims[-1].text


def test_without_contention_there_is_nothing_to_gain_from_threads():
    found = small(library_threads=8)
    sweep = sensitivity.sensitivity(found, points=2)[0]
    assert sweep.values[0] == 0
    gains = sweep.gains["Tiny"]
    assert gains[0] < gains[1]


def test_parameters_read_back():
    found = small()
    assert parameters.Parameters.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.pop("threads"), "lacks the keys"),
        (lambda v: v.update(extra=1), "unknown keys"),
        (lambda v: v["workloads"][1].update(batch=0), r"workloads\[1\]: batch must be from 1"),
        (lambda v: v["workloads"][0]["cost"].update(num_workers=0), r"workloads\[0\]: num_workers"),
        (lambda v: v.update(workloads=[]), "workloads must hold at least one"),
        (lambda v: v.update(max_groups=0), "max_groups must be from 1"),
    ],
)
def test_bad_parameters_are_named(change, words):
    value = json.loads(small().to_json())
    change(value)
    with pytest.raises(ValueError, match=words):
        parameters.Parameters.from_json(json.dumps(value))


def test_marks_are_filled_and_must_match():
    text = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n"
    filled = fill(text, {"x": "new\n"})
    assert filled == "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n"
    assert fill(filled, {"x": "new\n"}) == filled
    with pytest.raises(ValueError, match="marks must be"):
        fill(text, {"y": "new\n"})


def test_another_set_gets_a_document_of_its_own(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "paper_small.md"
    results = tmp_path / "results" / "paper_small.json"
    for _ in range(2):  # made, then filled in
        run(small(), path, results, with_asc=False, points=2)
        text = path.read_text()
        assert "# The papers' evaluation: Small" in text
        assert "| Tiny | LIBRA |" in text
    numbers = json.loads(results.read_text())
    assert numbers["parameters"]["workloads"] == ["Tiny", "Other"]
    assert len(numbers["scale"]) == 2 * 8 * 6
    pictures = sorted((tmp_path / "images").glob("*.svg"))
    assert [p.stem.removeprefix("paper_small_") for p in pictures] == [
        "breakdown", "scale", "sensitivity", "throughput",
    ]  # fmt: skip
    for picture in pictures:
        assert xml.etree.ElementTree.parse(picture).getroot().tag.endswith("svg")
        assert f"images/{picture.name}" in text


def test_the_docs_are_of_todays_parameters(second_set):
    docs = (Path(__file__).resolve().parents[2] / "docs" / "paper.md").read_text()
    for found in (parameters.of_libra(), second_set):
        assert document.sources(found) in docs


def gpu_results(folder, **changes):
    """Files as `benchmarks.gpu` writes them, of two tiny networks."""
    workload = small().workloads[0]
    profile, cost = (documents.as_value(value) for value in (workload.profile, workload.cost))
    cost |= {"compute": [1.0, 2e-4]}
    run_of_one = {"batch_size": 16, "forward_seconds": 7e-3, "profile": profile}
    steps = {
        "profiles": {"models": {"vgg16": run_of_one, "mine": run_of_one}},
        "curves": {"cost_model": cost},
        "training": {"models": {"vgg16": {"cost_model": cost | {"num_workers": 2}}}},
    } | changes
    for step, results in steps.items():
        document = {
            "format": documents.FORMAT,
            "version": documents.VERSION,
            "step": step,
            "dry_run": False,
            "complete": True,
            "started": "2026-01-01T00:00:00+00:00",
            "environment": dict.fromkeys(documents.MEASURED_ON, "given"),
            "settings": {},
            "notes": [],
            "results": results,
        }
        documents.write(folder / f"{step}.json", document)


def test_results_of_a_gpu_are_parameters(tmp_path):
    gpu_results(tmp_path)
    found = of_gpu(tmp_path, library_threads=4)
    assert [w.name for w in found.workloads] == ["VGG16", "mine"]
    assert all(w.cost.num_workers == 8 and w.batch == 16 for w in found.workloads)
    assert found.threads == (128, 256, 512, 1024, 2048, 4096)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"profiles": {"models": {}}}, "holds no profile"),
        ({"curves": {}, "training": {}}, "holds no cost model for vgg16"),
    ],
)
def test_results_of_a_gpu_may_lack_something(tmp_path, changes, words):
    gpu_results(tmp_path, **changes)
    with pytest.raises(ValueError, match=words):
        of_gpu(tmp_path)


def test_networks_of_the_papers_load():
    titles = {networks.load(name).title for name in networks.NAMES}
    assert {w.name for w in parameters.of_libra().workloads} < titles
    assert {w.name for w in parameters.of_asc_wfbp()} < titles
