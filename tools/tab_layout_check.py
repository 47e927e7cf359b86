"""Pictures of every view of the Libra tab, to be looked at: few groups and many, 1 rank and 8.

    python -m tools.tab_layout_check --out build/looks
    python -m tools.tab_layout_check --out build/looks --cases g20_r8 --views timeline --themes dark
    python -m tools.tab_layout_check --out build/looks --cases staged

`staged` are a pipeline and bursts, of 2 ranks and of 8, and background jobs.

Each at 1600 and 900 pixels, light and dark. The runs are made up
(tests/reporting/tensorboard/examples.py): what they show is no measurement.
"""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
from absl import app, flags

from tests.reporting.tensorboard import examples
from tf_libra import strategies
from tf_libra.autotune.trial_comparison import Candidate, Race
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.reporting.records.plan import PlanRecord, versions
from tf_libra.reporting.records.step import StepRecord
from tf_libra.specs.plan import TensorGroup
from tools import tensorboard_tab

CASES = tuple((groups, ranks) for groups in (2, 20, 100) for ranks in (1, 8))
STAGED = "staged"
WIDTHS = (1600, 900)
THEMES = ("light", "dark")
_NUM_STEPS = 120  # under the plan
_TENSORS_OF_A_GROUP = 10
_MOST_LATE_NS = 2_000_000
_SEED = 3


def name_of(groups: int, ranks: int) -> str:
    """The run's folder."""
    return f"g{groups}_r{ranks}"


def write_runs(folder: Path) -> None:
    """Writes a run for each case, and one of a function that has no plan yet."""
    for groups, ranks in CASES:
        _write_run(folder / name_of(groups, ranks), groups, ranks)
    writer = RecordWriter(folder / "measuring", 0)
    for step in range(1, 15):
        most = {"max_tuning_steps": 60.0} if step == 1 else {}
        writer.history(step, "other_step", {"step_seconds": 0.05, **most})
    writer.close()


def _write_run(folder: Path, groups: int, ranks: int) -> None:
    random = np.random.default_rng(_SEED)
    record = _raced(
        examples.plan_record(
            num_tensors=groups * _TENSORS_OF_A_GROUP,
            num_groups=groups,
            strategy=strategies.Libra(threads=(1, 2, 4)),
        )
    )
    for rank in range(ranks):
        writer = RecordWriter(folder, rank)
        if rank == 0:
            writer.record(record.step, record)
        for number, stretch in enumerate(examples.STRETCHES):
            late = int(random.integers(0, _MOST_LATE_NS)) if rank else 0
            step = examples.traced_step(record, stretch, 1 + number)
            writer.record(step.step, _of_rank(step, rank, late))
        if rank == 0:
            for number in range(1, record.step + _NUM_STEPS):
                seconds = 0.05 + 0.005 * random.random()
                writer.history(number, record.function, {"step_seconds": seconds})
            for number in range(record.step + 3, record.step + _NUM_STEPS, 20):
                parts = {"backward_seconds": 0.04, "residual_communication_seconds": 0.004}
                spread = 1 + 0.1 * random.random()
                values = {name: spread * seconds for name, seconds in parts.items()}
                writer.history(number, record.function, values)
        writer.close()


def _raced(record: PlanRecord) -> PlanRecord:
    """With a race that its plan has won, and the versions of this machine."""
    random = np.random.default_rng(_SEED)
    whole = (TensorGroup(0, len(record.plan.tensor_names), 1),)
    merged_plan = dataclasses.replace(record.plan, groups=whole, strategy="syneasgd")
    race = Race(
        tuple(
            Candidate(plan, predicted, tuple(random.normal(seconds, 0.001, 4).tolist()))
            for plan, predicted, seconds in (
                (record.plan, 0.050, 0.050),
                (merged_plan, 0.060, 0.056),
            )
        )
    )
    conclusion = dataclasses.replace(record.conclusion, race=race)
    return dataclasses.replace(record, versions=versions(), conclusion=conclusion)


def _of_rank(step: StepRecord, rank: int, late_ns: int) -> StepRecord:
    """The step as another rank has it, ready later, and with waits."""
    spans = tuple(
        dataclasses.replace(
            reduce,
            enqueued_ns=reduce.enqueued_ns + late_ns,
            started_ns=reduce.started_ns + late_ns,
            first_byte_ns=min(reduce.started_ns + max(late_ns, 1_500_000), reduce.finished_ns),
            finished_ns=max(reduce.finished_ns, reduce.started_ns + late_ns),
        )
        for reduce in step.all_reduces
    )
    moved = dataclasses.replace(step, rank=rank, all_reduces=spans, host=f"node-{rank // 4}")
    if rank == 0:
        return moved
    return dataclasses.replace(moved, backward_start_ns=None, produced_ns=())


def write_staged(folder: Path) -> None:
    """Writes runs whose ranks have stages of their own, which have no plan of tensor groups."""
    for number, records in enumerate(
        (
            (examples.pipeline_record(), examples.burst_record("other_step")),
            (examples.pipeline_record(ranks=8), examples.burst_record("other_step", ranks=8)),
        )
    ):
        for rank in range(records[0].cluster.num_devices):
            writer = RecordWriter(folder / f"run_{number}", rank)
            for record in records if rank == 0 else ():
                writer.record(record.step, record)
            writer.record(64, examples.background_record(rank, "other_step"))
            writer.close()


def main(_: list[str]) -> None:
    """Takes the pictures."""
    out = Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    cases = [case for case in _CASES.value if case != STAGED]
    for case, write in ((cases, write_runs), ([], write_staged)):
        if not case and STAGED not in _CASES.value:
            continue
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))
            with tensorboard_tab.serving(Path(folder)) as address:
                for theme in _THEMES.value:
                    for width in map(int, _WIDTHS.value):
                        _look(address, theme, width, case, out)


def _look(address: str, theme: str, width: int, cases: list[str], out: Path) -> None:
    with tensorboard_tab.browsing(theme == "dark", width) as tab:
        tab.open(address)
        for case in cases:
            tab.choose("#run", case)
            for view in _VIEWS.value:
                tab.view(view)
                _picture(tab, out / f"{case}_{view}_{width}_{theme}.png")
        if not cases:
            _picture(tab, out / f"{STAGED}_{width}_{theme}.png")
        for line in tab.trouble():
            print(line)


def _picture(tab: tensorboard_tab.Tab, path: Path) -> None:
    tab.picture(path)
    wider = tab.script("return document.documentElement.scrollWidth - window.innerWidth")
    print(path, f"is {wider} pixels wider than its window" if wider > 0 else "")


if __name__ == "__main__":
    _OUT = flags.DEFINE_string("out", "build/looks", "Folder for the pictures.")
    _CASES = flags.DEFINE_list(
        "cases", [*(name_of(*case) for case in CASES), STAGED], "Runs to look at."
    )
    _VIEWS = flags.DEFINE_list("views", list(tensorboard_tab.VIEWS), "Views to look at.")
    _WIDTHS = flags.DEFINE_list("widths", [str(width) for width in WIDTHS], "In pixels.")
    _THEMES = flags.DEFINE_list("themes", list(THEMES), "light and dark.")
    app.run(main)
