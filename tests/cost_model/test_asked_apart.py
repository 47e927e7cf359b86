"""Residuals and derivatives that are computed together, and asked for one after the other."""

import numpy as np

from tf_libra.cost_model.asked_apart import asked_apart


def test_they_are_computed_once_where_a_search_has_just_been() -> None:
    computed: list[tuple[float, ...]] = []

    def both(point: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
        computed.append(point)
        return np.array(point) - 1, 2 * np.eye(len(point))

    residuals, slopes = asked_apart(both)
    for point in (np.array([1.0, 3.0]), np.array([2.0, 3.0])):
        assert residuals(point).tolist() == [point[0] - 1, 2]
        assert slopes(point).tolist() == [[2, 0], [0, 2]]
    assert computed == [(1.0, 3.0), (2.0, 3.0)]


def test_what_one_caller_writes_no_other_sees() -> None:
    """Scipy writes: it scales both by the loss, and may come back to where it has been."""
    residuals, slopes = asked_apart(lambda point: (np.array(point), np.eye(len(point))))
    here = np.array([1.0, 2.0])
    for ask in (residuals, slopes):
        expected = ask(here).tolist()
        found = ask(here)
        found *= 3
        assert ask(here).tolist() == expected
