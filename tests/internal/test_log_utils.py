"""The logging ranks and their level: rank, environment and application in turn."""

import contextlib
import io
import logging
from collections.abc import Iterator

import pytest

from tf_libra.internal import log_utils


@contextlib.contextmanager
def fresh_process() -> Iterator[logging.Logger]:
    """Loggers as a process finds them, without pytest's handlers; afterwards as they were."""
    log, root = logging.getLogger("tf_libra"), logging.getLogger()
    before = [(logger, logger.handlers, logger.level, logger.propagate) for logger in (log, root)]
    own = vars(log).pop("_tf_libra_level", None)
    log.handlers, root.handlers, log.propagate = [], [], True
    log.setLevel(logging.NOTSET)
    root.setLevel(logging.WARNING)
    try:
        yield log
    finally:
        for logger, handlers, level, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
        if own is not None:
            log._tf_libra_level = own


def test_rank_0_speaks_and_the_others_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(log_utils.LEVEL_VARIABLE, raising=False)
    with fresh_process() as log:
        assert log_utils.logger(0).level == logging.INFO
        assert log_utils.logger(3).level == logging.WARNING
        assert log_utils.logger(0).level == logging.INFO  # an elastic job's ranks change
        assert len(log.handlers) == 1


@pytest.mark.parametrize(
    ("named", "of_0", "of_1"),
    [("debug", "DEBUG", "WARNING"), ("ERROR", "ERROR", "ERROR"), ("loud", "INFO", "WARNING")],
)
def test_the_environment_names_a_level(
    named: str, of_0: str, of_1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(log_utils.LEVEL_VARIABLE, named)
    with fresh_process():
        assert logging.getLevelName(log_utils.logger(0).level) == of_0
        assert logging.getLevelName(log_utils.logger(1).level) == of_1


@pytest.mark.parametrize(
    ("named", "said"), [("info", ""), ("loud", "TF_LIBRA_LOG_LEVEL must be debug, info, warning")]
)
def test_unknown_level_is_logged(named: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_utils.LEVEL_VARIABLE, named)
    with fresh_process() as log:
        log.addHandler(logging.StreamHandler(reported := io.StringIO()))
        log_utils.warn_of_unknown_level(log_utils.logger(0))
    assert reported.getvalue().startswith(said)
    assert bool(reported.getvalue()) == bool(said)


def test_level_of_the_application_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(log_utils.LEVEL_VARIABLE, raising=False)
    with fresh_process() as log:
        log.setLevel(logging.ERROR)
        assert log_utils.logger(0).level == logging.ERROR
    with fresh_process() as log:
        root = logging.getLogger()
        root.setLevel(logging.ERROR)
        root.addHandler(logging.NullHandler())
        assert log_utils.logger(0).level == logging.ERROR
        assert log.handlers == []  # the root's serve
