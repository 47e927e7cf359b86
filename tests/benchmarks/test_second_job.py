"""When a search is there, by what its steps' settings take in turns."""

from benchmarks import second_job


def test_a_search_is_there_with_the_first_step_that_is_near_what_it_came_to() -> None:
    assert second_job.steps_until_near([1.3, 1.3, 1.1, 1.02, 1.0]) == 4
    assert second_job.steps_until_near([1.02]) == 1
    assert second_job.steps_until_near([0.99, 1.0]) == 1
    assert second_job.steps_until_near([1.3, 1.1]) is None


def test_both_searches_are_reported() -> None:
    searched = {"steps": 40, "settings": 18, "to_final": [1.25], "steps_until_near": 9}
    never = searched | {"steps_until_near": None}
    settings = {"changed": "vgg13", "model": "vgg", "network": "one host"}
    reported = second_job.summary({"alone": never, "helped": searched, "settings": settings})
    assert "alone: near its final step after no of 40 steps" in reported
    assert (
        "helped: near its final step after 9 of 40 steps, 18 settings; the first was 1.250"
        in reported
    )
