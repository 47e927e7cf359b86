"""The summary of a job's end, by the output of its workers."""

import pytest

from tf_libra.launcher.exit_summary import ExitSummary


def outcome(*lines: str) -> ExitSummary:
    found = ExitSummary()
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


def test_error_and_its_consequences_take_a_line_each() -> None:
    lost = "horovod.common.exceptions.HorovodInternalError: rank 1: rank 0 gave up"
    found = outcome(
        *raised(1, "tf_libra.coordination.control_plane.LostRankError: rank 0 gave up"),
        "[1]<stderr>:The above exception was the direct cause of the following exception:",
        *raised(1, lost),
        *raised(0, "KeyError: 'mine'"),
        "[0]<stderr>:tf_libra: train_step: 5 steps",
        status(1, 1),
        status(0, 1),
    )
    assert found.lines() == ["rank 0: KeyError: 'mine'", "rank 1: ended because of that"]


def test_ranks_that_say_the_same_say_it_once() -> None:
    reported = "ValueError: threads must be from 1 to 64, got 0"
    found = outcome(*raised(1, reported), *raised(0, reported), status(0, 1), status(1, 1))
    assert found.lines() == [f"rank 0: {reported}", "rank 1: the same as rank 0"]


def test_worker_ended_by_the_launcher_is_not_a_cause() -> None:
    found = outcome(*raised(1, "OSError: no"), status(1, 1), status(0, 143))
    assert found.lines() == ["rank 1: OSError: no"]


def test_lost_ranks_without_a_cause_are_listed() -> None:
    reported = "horovod.common.exceptions.HorovodInternalError: rank 1 did not arrive"
    assert outcome(*raised(0, reported), status(0, 1)).lines() == [
        "rank 0: HorovodInternalError: rank 1 did not arrive"
    ]


# As TensorFlow says that a generator has raised, and as other ranks quote it.
DAMAGED = (
    "ValueError: record 90 is damaged",
    "Traceback (most recent call last):",
    "",
    '  File "script_ops.py", line 269, in __call__',
    "    ret = func(*args)",
    "",
    "ValueError: record 90 is damaged",
    "",
    "\t [[{{node PyFunc}}]] [Op:IteratorGetNext] name: ",
)
INVALID = "tensorflow.python.framework.errors_impl.InvalidArgumentError: "
LOST = "horovod.common.exceptions.HorovodInternalError: "


def quoting(rank: int, by: int) -> list[str]:
    reported = f"LibraAllReduce: rank {by}, group 0 (w) of plan 1 in step: rank {rank} gave up:"
    end = [f"{DAMAGED[-1]}); step 23 was not completed", "\t [[tf_libra/1/group_0_wait]]"]
    detected = ["", "Detected at node PyFunc defined at (most recent call last):"]
    first = f"{reported} InvalidArgumentError: {{{{function_node f}}}} {DAMAGED[0]}"
    return raised(by, f"{LOST}Graph execution error:", *detected, first, *DAMAGED[1:-1], *end)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("is_first", [False, True])
def test_rank_with_failed_data_differs_from_ranks_that_quote_it(rank: int, is_first: bool) -> None:
    others = [index for index in range(3) if index != rank]
    own = raised(rank, f"{INVALID}{{{{function_node w_device_/job:0}}}} {DAMAGED[0]}", *DAMAGED[1:])
    quotes = [line for other in others for line in quoting(rank, other)]
    lines = [*own, *quotes] if is_first else [*quotes, *own]
    found = outcome(*lines, *(status(other, 1) for other in (*others, rank)))
    assert found.lines() == [
        f"rank {rank}: InvalidArgumentError: ValueError: record 90 is damaged",
        f"ranks {others[0]}, {others[1]}: ended because of that",
    ]


def test_independent_errors_are_listed_in_order() -> None:
    found = outcome(
        *raised(2, "KeyError: 'late'"),
        *raised(1, f"{LOST}rank 2 gave up"),
        *raised(0, "OSError: no space"),
        *(status(rank, 1) for rank in range(3)),
    )
    assert found.lines() == [
        "rank 2: KeyError: 'late'",
        "rank 0: OSError: no space",
        "rank 1: ended because of that",
    ]


def test_killed_rank_precedes_the_ranks_that_lost_it() -> None:
    unavailable = "tensorflow.python.framework.errors_impl.UnavailableError: rank 0: rank 1 is gone"
    found = outcome(
        *raised(0, unavailable),
        *raised(2, f"{LOST}rank 1 is gone"),
        status(1, 137),
        status(0, 1),
        status(2, 1),
    )
    assert found.lines() == [
        "rank 1: ended by SIGKILL, as when memory runs out",
        "ranks 0, 2: ended because of that",
    ]


def test_an_error_of_the_network_that_names_no_rank_is_a_cause() -> None:
    reported = "tensorflow.python.framework.errors_impl.UnavailableError: storage is out of reach"
    found = outcome(*raised(1, reported), *raised(0, f"{LOST}rank 1"), status(0, 1), status(1, 1))
    assert found.lines()[0] == "rank 1: UnavailableError: storage is out of reach"


def test_errors_that_led_to_another_are_not_taken_for_quotes() -> None:
    found = outcome(
        *raised(0, f"{INVALID}first"),
        "[0]<stderr>:",
        "[0]<stderr>:During handling of the above exception, another exception occurred:",
        "[0]<stderr>:",
        *raised(0, "KeyError: 'last'"),
        status(0, 1),
    )
    assert found.lines() == ["rank 0: KeyError: 'last'"]


@pytest.mark.parametrize(
    ("said", "summary"),
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
def test_context_lines_of_tensorflow_are_left_out(said: list[str], summary: str) -> None:
    assert outcome(*raised(0, *said), status(0, 1)).lines() == [f"rank 0: {summary}"]


@pytest.mark.parametrize(
    ("number", "summary"),
    [
        (137, "ended by SIGKILL, as when memory runs out"),
        (139, "ended by SIGSEGV"),
        (2, "exit status 2: python: can't open file 'trian.py'"),
    ],
)
def test_exit_status_is_listed_without_a_traceback(number: int, summary: str) -> None:
    found = outcome("[0]<stderr>:python: can't open file 'trian.py'", status(0, number))
    assert found.lines() == [f"rank 0: {summary}"]


@pytest.mark.parametrize(
    "said",
    [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795387698.931512   29553 port.cc:153] oneDNN custom operations are on.",
        "2026-01-31 12:00:00.123456: W tensorflow/core/framework/op.cc:7] allocation exceeds 10 %",
    ],
)
def test_log_lines_of_tensorflow_do_not_explain_an_exit_status(said: str) -> None:
    found = outcome("[0]<stderr>:no GPU is left", f"[0]<stderr>:{said}", status(0, 4))
    assert found.lines() == ["rank 0: exit status 4: no GPU is left"]


def test_lines_of_mpirun_and_lines_with_times_are_parsed() -> None:
    found = ExitSummary()
    for line in ("Traceback (most recent call last):", "KeyError: 1"):
        found.read(f"[0,3]<stderr>:{line}\n")
        found.read(f"Sun Nov 22 10:00:00 2026[1]<stderr>:{line}\n")
    assert found.lines() == ["rank 1: KeyError: 1", "rank 3: the same as rank 1"]


def test_an_error_that_the_script_has_caught_is_not_why_it_ended() -> None:
    """Python ends by 1 after an uncaught one; and our own lines are no reasons."""
    found = outcome(
        *raised(0, "SystemError: printed, and gone on"),
        "[0]<stderr>:no more images",
        "[0]<stderr>:tf_libra: run: plan 3eb9aa6c59fd2ab0 (tuned) is active from step 13 on",
        "[0]<stderr>:  group   tensors      size  threads  predicted start       end",
        "[0]<stderr>:      0  6 (0..5)  6.928 kB        1         82.66 us  7.731 ms",
        "[0]<stderr>:tf_libra: step: 2 steps, ended before a plan was active",
        status(0, 3),
    )
    assert found.lines() == ["rank 0: exit status 3: no more images"]


def test_launcher_lines_about_the_end_are_hidden() -> None:
    found = ExitSummary()
    hidden = [
        status(1, 1),
        "Terminating remaining workers after failure of Process 1.",
        "[0]<stderr>:Terminated",
    ]
    shown = ["[0]<stdout>:Terminated", "[1]<stderr>:Process 1 exit with status code 1.", "hello"]
    assert not any(found.read(line) for line in hidden)
    assert all(found.read(line) for line in shown)


def test_successful_job_has_an_empty_summary() -> None:
    assert outcome("[0]<stdout>:accuracy 97 %").lines() == []
