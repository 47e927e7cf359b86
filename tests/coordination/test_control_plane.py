"""Errors that say that a rank is lost, by the op that raises them."""

import pytest
import tensorflow as tf

from tf_libra.coordination.control_plane import is_elsewhere, lost


@pytest.mark.parametrize(
    "op", ["LibraAllReduce", "LibraCheckBranch", "LibraGatherOwned", "LibraSend", "LibraReceive"]
)
def test_op_that_loses_a_rank_says_so(op: str) -> None:
    text = f"{op}: rank 0, messages: rank 1 is gone: Connection reset by peer"
    for kind in (tf.errors.AbortedError, tf.errors.DeadlineExceededError):
        assert lost(kind(None, None, text)) == text
        for message in (text, f"{text} (ValueError: x\n\t [[node y]]); step 4 was not completed"):
            located = f"Graph execution error:\n\nDetected at node x\n{message}\n\t [[x]] [Op:f]"
            assert lost(kind(None, None, located)) == message
            assert lost(kind(None, None, f"{message} [Op:f] name: ")) == f"{message} [Op:f] name: "
        assert lost(kind(None, None, text.replace(op, "Another"))) is None
    between = f"{op}: rank 1 is at between steps: the end of an epoch"
    assert is_elsewhere(tf.errors.FailedPreconditionError(None, None, between))
