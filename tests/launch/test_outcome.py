"""What is told of a job's end, by what its workers have printed."""

import pytest

from tf_libra.launch.outcome import Outcome


def outcome(*lines: str) -> Outcome:
    found = Outcome()
    for line in lines:
        found.read(f"{line}\n")
    return found


def raised(rank: int, *said: str) -> list[str]:
    return [
        f"[{rank}]<stderr>:{line}"
        for line in ("Traceback (most recent call last):", '  File "t.py", line 3, in f', *said)
    ]


def status(rank: int, number: int) -> str:
    return f"Process {rank} exit with status code {number}."


def test_an_error_stands_in_one_line_and_what_follows_from_it_in_another() -> None:
    lost = "horovod.common.exceptions.HorovodInternalError: rank 1: rank 0 gave up"
    found = outcome(
        *raised(1, "tf_libra.ranks.control.LostRankError: rank 0 gave up"),
        "[1]<stderr>:The above exception was the direct cause of the following exception:",
        *raised(1, lost),
        *raised(0, "KeyError: 'mine'"),
        "[0]<stderr>:tf_libra: train_step: 5 steps",
        status(1, 1),
        status(0, 1),
    )
    assert found.told() == ["rank 0: KeyError: 'mine'", "rank 1: ended because of that"]


def test_ranks_that_say_the_same_say_it_once() -> None:
    said = "ValueError: threads must be from 1 to 64, got 0"
    found = outcome(*raised(1, said), *raised(0, said), status(0, 1), status(1, 1))
    assert found.told() == [f"rank 0: {said}", "rank 1: the same as rank 0"]


def test_a_worker_that_the_launcher_ended_is_not_at_fault() -> None:
    found = outcome(*raised(1, "OSError: no"), status(1, 1), status(0, 143))
    assert found.told() == ["rank 1: OSError: no"]


def test_lost_ranks_alone_are_told_as_they_are() -> None:
    said = "horovod.common.exceptions.HorovodInternalError: rank 1 did not arrive"
    assert outcome(*raised(0, said), status(0, 1)).told() == [
        "rank 0: HorovodInternalError: rank 1 did not arrive"
    ]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            [
                "ValueError: in user code:",
                "",
                '    File "t.py", line 25, in train_step  *',
                "        loss = loss_of(labels, model(images))",
                "    ValueError: Shapes (2,) and (3,) are incompatible",
            ],
            "ValueError: Shapes (2,) and (3,) are incompatible",
        ),
        (
            [
                "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution"
                " error:",
                "",
                "Detected at node Reshape defined at (most recent call last):",
                "<stack traces unavailable>",
                "Input to reshape is a tensor with 3 values",
                "\t [[{{node Reshape}}]] [Op:__inference_f_5]",
            ],
            "InvalidArgumentError: Input to reshape is a tensor with 3 values",
        ),
        (
            [
                "ValueError: in user code:",
                "",
                '    File "t.py", line 25, in train_step  *',
                "    ValueError: Exception encountered when calling Sequential.call().",
                "    ",
                "    \x1b[1mInput 0 is incompatible with the layer: expected (2, 3)\x1b[0m",
                "    ",
                "    Arguments received by Sequential.call():",
            ],
            "ValueError: Input 0 is incompatible with the layer: expected (2, 3)",
        ),
        (["SystemError"], "SystemError"),
    ],
)
def test_what_tensorflow_says_around_an_error_is_left_out(said: list[str], told: str) -> None:
    assert outcome(*raised(0, *said), status(0, 1)).told() == [f"rank 0: {told}"]


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (137, "ended by SIGKILL, as where memory runs out"),
        (139, "ended by SIGSEGV"),
        (2, "exit status 2: python: can't open file 'trian.py'"),
    ],
)
def test_without_a_traceback_the_exit_status_is_told(number: int, told: str) -> None:
    found = outcome("[0]<stderr>:python: can't open file 'trian.py'", status(0, number))
    assert found.told() == [f"rank 0: {told}"]


@pytest.mark.parametrize(
    "said",
    [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795387698.931512   29553 port.cc:153] oneDNN custom operations are on.",
        "2026-01-31 12:00:00.123456: W tensorflow/core/framework/op.cc:7] allocation exceeds 10 %",
    ],
)
def test_what_tensorflow_notes_is_no_reason_for_an_exit_status(said: str) -> None:
    found = outcome("[0]<stderr>:no GPU is left", f"[0]<stderr>:{said}", status(0, 4))
    assert found.told() == ["rank 0: exit status 4: no GPU is left"]


def test_lines_of_mpirun_and_lines_with_times_are_read_likewise() -> None:
    found = Outcome()
    for line in ("Traceback (most recent call last):", "KeyError: 1"):
        found.read(f"[0,3]<stderr>:{line}\n")
        found.read(f"Sun Nov 22 10:00:00 2026[1]<stderr>:{line}\n")
    assert found.told() == ["rank 1: KeyError: 1", "rank 3: the same as rank 1"]


def test_an_error_that_the_script_has_caught_is_not_why_it_ended() -> None:
    """Python ends by 1 after one that nobody catches; and our own lines are no reasons."""
    found = outcome(
        *raised(0, "SystemError: printed, and gone on"),
        "[0]<stderr>:no more images",
        "[0]<stderr>:tf_libra: step: 2 steps, which ended before a plan was in force",
        status(0, 3),
    )
    assert found.told() == ["rank 0: exit status 3: no more images"]


def test_what_the_launcher_says_of_the_end_is_not_shown_twice() -> None:
    found = Outcome()
    hidden = [
        status(1, 1),
        "Terminating remaining workers after failure of Process 1.",
        "[0]<stderr>:Terminated",
    ]
    shown = ["[0]<stdout>:Terminated", "[1]<stderr>:Process 1 exit with status code 1.", "hello"]
    assert not any(found.read(line) for line in hidden)
    assert all(found.read(line) for line in shown)


def test_a_job_that_ended_well_has_nothing_to_tell() -> None:
    assert outcome("[0]<stdout>:accuracy 97 %").told() == []
