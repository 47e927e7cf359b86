"""Separate callbacks of residuals and derivatives that one function computes together."""

import numpy as np

from tf_libra.cost_model.least_squares import split_fun_and_jac


def test_pair_is_computed_once_per_point() -> None:
    computed: list[tuple[float, ...]] = []

    def both(point: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
        computed.append(point)
        return np.array(point) - 1, 2 * np.eye(len(point))

    residuals, slopes = split_fun_and_jac(both)
    for point in (np.array([1.0, 3.0]), np.array([2.0, 3.0])):
        assert residuals(point).tolist() == [point[0] - 1, 2]
        assert slopes(point).tolist() == [[2, 0], [0, 2]]
    assert computed == [(1.0, 3.0), (2.0, 3.0)]


def test_results_are_copies() -> None:
    """SciPy scales both arrays in place and may come back to a point."""
    residuals, slopes = split_fun_and_jac(lambda point: (np.array(point), np.eye(len(point))))
    here = np.array([1.0, 2.0])
    for ask in (residuals, slopes):
        expected = ask(here).tolist()
        found = ask(here)
        found *= 3
        assert ask(here).tolist() == expected
