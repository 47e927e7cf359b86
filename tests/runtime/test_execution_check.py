"""A step that has left out all-reduces is reported, by the counts of the kernels."""

from collections import Counter

import pytest

from tf_libra.capture.unconditional_reduces import UnconditionalReduces
from tf_libra.coordination.control_plane import EngineError
from tf_libra.internal import native
from tf_libra.runtime import execution_check

FUNCTION = "step of tests/runtime/test_execution_check.py"


def execute(*names: str) -> None:
    """Runs the op that counts all-reduces of another library, as it stands behind each of them."""
    for name in names:
        native.load().ops.libra_all_reduce_done(tensor_names=[name], function=FUNCTION)


def certain(*names: str, has_conditional: bool = False) -> UnconditionalReduces:
    return UnconditionalReduces(Counter(names), has_conditional)


def test_complete_execution_passes() -> None:
    execution_check.start_counting(FUNCTION)
    execution_check.check_executed(FUNCTION, certain(), step=1)
    execute("a", "b", "b")
    execution_check.check_executed(FUNCTION, certain("a", "b", "b"), step=1)


def test_missing_all_reduces_are_counted_and_named() -> None:
    execution_check.start_counting(FUNCTION)
    execute("a")
    with pytest.raises(EngineError, match=r"step 4 .* 2 of the 3 .*'b'"):
        execution_check.check_executed(FUNCTION, certain("a", "b", "b"), step=4)


def test_additional_all_reduces_do_not_replace_missing_ones() -> None:
    execution_check.start_counting(FUNCTION)
    execute("a", "other")
    with pytest.raises(EngineError, match=r"steps 3.*4"):
        execution_check.check_executed(
            FUNCTION, certain("a", "b", has_conditional=True), step=4, num_steps=2
        )


def test_conditional_all_reduces_may_be_missing() -> None:
    execution_check.start_counting(FUNCTION)
    execute("a", "sometimes")
    execution_check.check_executed(FUNCTION, certain("a", has_conditional=True), step=1)
