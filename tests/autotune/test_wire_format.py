"""Lossy wire formats in cost models, plans and tuning."""

from dataclasses import replace

import pytest

import tf_libra
from tests.autotune.machine import MODEL, PROFILE, Machine, drive, linked
from tf_libra.autotune import Budget, WireFormat
from tf_libra.backends import engine as engine_lib
from tf_libra.cost_model import CostModel, ProcessorModel
from tf_libra.planning import explain
from tf_libra.specs.backward_profile import BackwardProfile

BFLOAT16 = WireFormat("bfloat16", 1e-12)
SLOW = WireFormat("bfloat16", 1.0)
ON_CPUS = ProcessorModel(2, 1e-4, 1e-10, 1.6e-9)


def halved(profile: BackwardProfile) -> BackwardProfile:
    tensors = [replace(tensor, num_bytes=tensor.num_bytes // 2) for tensor in profile.tensors]
    return replace(profile, tensors=tuple(tensors))


@pytest.mark.parametrize("model", [MODEL, ON_CPUS])
@pytest.mark.parametrize("strategy", ["wfbp", "libra", "syneasgd"])
def test_rounded_tensors_take_the_time_of_half_their_bytes(model: CostModel, strategy: str) -> None:
    lossy = tf_libra.make_plan(PROFILE, model, strategy, "bfloat16")
    small = tf_libra.make_plan(halved(PROFILE), model, strategy)
    assert lossy.groups == small.groups
    assert lossy.wire_bytes == small.group_bytes
    assert lossy.predicted_seconds == pytest.approx(small.predicted_seconds, rel=1e-9)
    assert "lossy" in str(explain(PROFILE, lossy, model))


def test_rounding_takes_time_of_the_cores() -> None:
    rounding = ON_CPUS.with_rounding(3e-10).on_wire(0.5)
    assert isinstance(rounding, ProcessorModel)
    assert rounding.work_per_byte == pytest.approx(0.5e-10 + 3e-10)
    assert rounding.wire_per_byte == pytest.approx(0.8e-9)
    # Zeros are rounded, too, although they do not count as bytes that are sent.
    sparse = ON_CPUS.with_rounding(3e-10).on_wire(0.5, 10)
    assert isinstance(sparse, ProcessorModel)
    assert sparse.work_per_byte == pytest.approx(0.5e-10 + 3e-9)
    assert PROFILE.with_density(dict.fromkeys(PROFILE.names, 0.1)).bytes_per_effective == (
        pytest.approx(10, rel=1e-4)
    )
    # Four workers transmit 1.5 times the bytes that each of them rounds.
    of_four = ON_CPUS.with_workers(4).with_rounding(3e-10).on_wire(0.75)
    assert isinstance(of_four, ProcessorModel)
    assert of_four.work_per_byte == pytest.approx(0.75e-10 + 1e-10)
    assert ON_CPUS.with_rounding(1.0).on_wire(1.0) == ON_CPUS.with_rounding(1.0)
    alone = ON_CPUS.with_workers(1).with_rounding(1.0)
    assert alone.on_wire(0.5) == alone
    assert ProcessorModel.from_json(rounding.to_json()) == rounding


@pytest.mark.parametrize("strategy", ["libra", "auto", "aiacc", "mg-wfbp"])
@pytest.mark.parametrize("wire", [None, BFLOAT16])
def test_tuning_chooses_the_faster_format(strategy: str, wire: WireFormat | None) -> None:
    tuned, trials = drive(Machine(), strategy, Budget(150, 1e6), wire=wire)
    expected = None if wire is None else wire.dtype
    assert tuned.plan.wire_dtype == expected
    if tuned.race is not None and wire is not None:
        assert {candidate.plan.wire_dtype for candidate in tuned.race.candidates} == {
            None,
            wire.dtype,
        }
    if wire is None:
        assert {trial.plan.wire_dtype for trial in trials} == {None}


@pytest.mark.parametrize("strategy", ["libra", "auto", "mg-wfbp"])
def test_tuning_selects_float32_if_rounding_takes_longer(strategy: str) -> None:
    machine = Machine(model=MODEL.with_rounding(SLOW.rounding_per_byte))
    tuned, _ = drive(machine, strategy, Budget(150, 1e6), wire=SLOW)
    assert tuned.plan.wire_dtype is None
    assert tuned.cost_model is not None
    assert tuned.cost_model.rounding_per_byte == SLOW.rounding_per_byte


@pytest.fixture(scope="module")
def measured() -> WireFormat:
    """Returns bfloat16 with the rate at which a core of this machine rounds."""
    return WireFormat("bfloat16", engine_lib.rounding_seconds("bfloat16"))


@pytest.mark.parametrize("strategy", ["libra", "auto", "aiacc", "mg-wfbp"])
@pytest.mark.parametrize(("speed", "expected"), [(100, None), (0.01, "bfloat16")])
def test_tuning_weighs_measured_rounding_against_the_wire(
    strategy: str, measured: WireFormat, speed: float, expected: str | None
) -> None:
    """Links move 190 GB/s, more than a core rounds, or 19 MB/s, less than it does."""
    machine = Machine(model=linked(speed).with_rounding(measured.rounding_per_byte))
    tuned, _ = drive(machine, strategy, Budget(150, 1e6), wire=measured)
    assert tuned.plan.wire_dtype == expected


def test_without_a_model_the_plan_is_lossy_and_says_so() -> None:
    tuned, _ = drive(Machine(), "libra", Budget(1, 1e6), wire=BFLOAT16)
    assert tuned.profile is None
    assert tuned.plan.wire_dtype == "bfloat16"
    assert any("bfloat16" in note for note in tuned.notes)
