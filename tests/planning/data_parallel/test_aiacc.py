import dataclasses
import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra import strategies
from tf_libra.internal.validation import MAX_INT32
from tf_libra.planning.data_parallel.aiacc import MAX_UNITS, CommConfig, pack, sizes_to_try
from tf_libra.specs.backward_profile import rows_of
from tf_libra.specs.plan import Plan

numbers = st.integers(1, MAX_INT32)
COST = tf_libra.ContentionModel(8, 1e-5, (1.0, 0.08), (2e9, 1.2e9, 0.4), (2.4e9, 1.3e9, 0.5))
DTYPES = {None: 16, "float32": 4, "float16": 2, "float64": 8}


@given(numbers, numbers, numbers)
def test_fields_round_trip(unit_bytes: int, num_streams: int, num_threads: int) -> None:
    setting = CommConfig(unit_bytes, num_streams, num_threads)
    assert (
        CommConfig.from_fields("setting", json.loads(json.dumps(dataclasses.asdict(setting))))
        == setting
    )
    assert setting.num_lanes == num_streams * num_threads


@pytest.mark.parametrize(
    ("field", "most"),
    [("unit_bytes", None), ("num_streams", MAX_INT32), ("num_threads", MAX_INT32)],
)
def test_number_out_of_range_is_named(field: str, most: int | None) -> None:
    fields = {"unit_bytes": 1, "num_streams": 1, "num_threads": 1}
    assert CommConfig(**fields)
    wrong = [0, -1, 1.5, True, None, *([] if most is None else [most + 1])]
    for value in wrong:
        with pytest.raises(ValueError, match=rf"{field} must be .*{value}"):
            CommConfig.from_fields("setting", fields | {field: value})
    if most is not None:
        assert CommConfig(**fields | {field: most})


@pytest.mark.parametrize("document", [{"unit_bytes": 1}, [1, 1, 1], None])
def test_wrong_document_is_rejected(document: object) -> None:
    with pytest.raises(ValueError, match="setting"):
        CommConfig.from_fields("setting", document)


def test_describe_names_units_streams_and_threads() -> None:
    text = CommConfig(4 << 20, 3, 2).describe()
    assert text == "units of 4.194 MB on 3 streams of 2 threads"


@st.composite
def profiles(draw: st.DrawFn) -> tf_libra.BackwardProfile:
    counts = draw(st.lists(st.integers(0, 60), min_size=1, max_size=9))
    dtypes = [draw(st.sampled_from(list(DTYPES))) for _ in counts]
    return tf_libra.BackwardProfile.from_arrays(
        [count * DTYPES[dtype] for count, dtype in zip(counts, dtypes, strict=True)],
        [1e-3] * len(counts),
        dtypes=None if None in dtypes else dtypes,
    )


def plan_of(profile: tf_libra.BackwardProfile, setting: CommConfig) -> Plan:
    return Plan.for_profile(profile, pack(profile, setting).groups, 2, "aiacc")


def item(profile: tf_libra.BackwardProfile, index: int) -> int:
    return DTYPES[profile.tensors[index].dtype]


@settings(max_examples=num_examples(300), deadline=None)
@given(profiles(), st.integers(1, 500), st.integers(1, 4))
# As large as a unit, but of no whole number of the elements that it is taken to have.
@example(tf_libra.BackwardProfile.from_arrays([4, 18], [0.0] * 2), 20, 1)
def test_units_have_the_size_and_cut_larger_tensors(profile, unit_bytes, num_streams) -> None:
    plan = plan_of(profile, CommConfig(unit_bytes, num_streams, 2))
    for index, group in enumerate(plan.groups):
        parts = plan.parts(index)
        # An element is never cut.
        assert plan.group_bytes[index] <= max(unit_bytes, *(item(profile, p.tensor) for p in parts))
        for part in parts:
            whole = profile.tensors[part.tensor].num_bytes
            if part.num_bytes < whole:
                assert whole > unit_bytes or whole > item(profile, part.tensor)
                assert part.start_byte % item(profile, part.tensor) == 0
        # What begins the next unit had no place in this one.
        if index + 1 < len(plan.groups) and not group.stop_byte:
            following = plan.parts(index + 1)[0]
            assert plan.group_bytes[index] + following.num_bytes > unit_bytes or (
                profile.tensors[following.tensor].num_bytes > unit_bytes
            )


@given(profiles(), st.integers(1, 500), st.integers(1, 4))
def test_unit_takes_the_first_free_stream(profile, unit_bytes, num_streams) -> None:
    plan = plan_of(profile, CommConfig(unit_bytes, num_streams, 1))
    loads = np.zeros(num_streams, dtype=int)
    for group, num_bytes in zip(plan.groups, plan.group_bytes, strict=True):
        assert loads[group.stream] == loads.min()
        loads[group.stream] += num_bytes


def test_packing_equals_the_paper_s_two_cases() -> None:
    """Small tensors are packed, a large one is sliced, in the order of registration."""
    profile = tf_libra.BackwardProfile.from_arrays(
        [4, 8, 4, 40, 8], [0.0] * 5, dtypes=["float32"] * 5
    )
    draft = pack(profile, CommConfig(16, 2, 1))
    found = [(g.start, g.start_byte, g.stop, g.stop_byte, g.stream) for g in draft.groups]
    assert found == [
        (0, 0, 3, None, 0),
        (3, 0, 4, 16, 1),
        (3, 16, 4, 32, 0),
        (3, 32, 5, None, 1),
    ]


@pytest.mark.parametrize("unit_bytes", [1, 7])
def test_units_of_one_byte_are_an_executable_plan(unit_bytes: int) -> None:
    profile = tf_libra.BackwardProfile.from_arrays([4_000_000, 40, 400_000], [1e-3] * 3)
    plan = tf_libra.make_plan(profile, COST, strategies.Aiacc(unit_bytes=unit_bytes))
    assert len(plan.groups) == MAX_UNITS
    assert any(f"units of {unit_bytes} bytes would be more than" in note for note in plan.notes)


def test_rows_are_never_cut() -> None:
    dtypes = ["float32", rows_of("float32"), "float32"]
    profile = tf_libra.BackwardProfile.from_arrays([100, 4000, 100], [1e-3] * 3, dtypes=dtypes)
    groups = plan_of(profile, CommConfig(64, 1, 1)).groups
    assert len(groups) == 5
    assert [group.stop for group in groups if group.stop_byte] == [1, 3]


def test_unit_above_all_bytes_is_one_all_reduce() -> None:
    profile = tf_libra.BackwardProfile.from_arrays([4000, 40], [1e-3] * 2)
    plan = tf_libra.make_plan(profile, COST, strategies.Aiacc(unit_bytes=10**12))
    assert len(plan.groups) == 1 and not plan.cuts_tensors
    assert any("holds all gradients" in note for note in plan.notes)


@settings(max_examples=num_examples(60), deadline=None)
@given(reference.profiles(max_tensors=8, updates=True), reference.any_costs((1, 2)))
def test_chosen_setting_has_the_shortest_prediction(profile, cost) -> None:
    strategy = strategies.Aiacc(threads=(1, 2), streams=(1, 2))
    plan = tf_libra.make_plan(profile, cost, strategy)
    others = []
    for size in strategy.unit_sizes(profile):
        # One stream of one thread is where the search begins.
        groups = pack(profile, CommConfig(size, 1, 1)).groups
        other = Plan.for_profile(profile, groups, cost.num_workers, "x", contention=1.5)
        others.append(tf_libra.simulate(profile, other, cost).step_seconds)
    found = tf_libra.simulate(profile, plan, cost).step_seconds
    assert found <= min(others) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"unit_bytes": 0}, "unit_bytes must be .*1.* got 0"),
        ({"streams": ()}, "streams must hold at least one"),
        ({"streams": (0, 2)}, "streams must be .*got 0"),
        ({"exploration": -1}, "exploration must be"),
        ({"contention": 0.5}, "contention must be"),
        ({"seed": -1}, "seed must be"),
        ({"threads": ()}, "threads must hold"),
    ],
)
def test_wrong_argument_is_named(given, message) -> None:
    with pytest.raises(ValueError, match=message):
        strategies.Aiacc(**given)


@given(st.integers(0, 10**11))
def test_unit_sizes_halve_from_the_total(total: int) -> None:
    sizes = sizes_to_try(total)
    assert sizes[-1] == max(total, 1) and list(sizes) == sorted(set(sizes))
