"""The inputs that the C functions accept and reject."""

import threading

import pytest

from tests.passes.graphs import GraphBuilder, Group, fuse, fused, reasons, register, report
from tf_libra.internal import native


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "number of groups|num_groups"),
        ([Group("ab"), Group("")], "group 1: has 0 tensors"),
        ([Group("ab", 0)], "group 0: num_threads is 0, must be at least 1"),
        ([Group("ab"), Group("c", -3)], "group 1: num_threads is -3"),
        ([Group("ab", stream=-1)], "group 0: stream is -1"),
        ([Group("ab"), Group("ca")], "group 1: tensor name 'a' stands in the plan more than once"),
        ([Group(["a", ""])], "a tensor name is empty"),
        ([Group("a", part_starts=[4])], "first part of 'a' begins at 4, must begin at 0"),
        ([Group("a", part_starts=[-2])], "first part of 'a' begins at -2"),
        ([Group("a", part_starts=[0]), Group("a")], "'a' stands in the plan more than once"),
        ([Group("a"), Group("a", part_starts=[4])], "'a' stands in the plan more than once"),
        (
            [Group("a", part_starts=[start]) for start in (0, 8, 8)],
            "a part of 'a' begins at 8, must begin behind 8",
        ),
    ],
)
def test_bad_plans_are_rejected(groups: list[Group], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        register(groups)


def test_a_plan_without_id_is_rejected() -> None:
    with pytest.raises(ValueError, match="plan id"):
        register([Group("a")], plan="")


def test_null_pointers_are_rejected() -> None:
    c = native.load().c
    ones = native.int_array([1])
    names = native.text_array(["a"])
    whole = native.long_array([-1])
    good = [b"plan", b"digest", 1, ones, ones, ones, names, whole, 0, b"", 1, ones, ones, names]
    for i in (0, 1, 3, 4, 5, 6, 7, 9, 11, 12, 13):
        arguments = list(good)
        arguments[i] = None
        assert c.TfLibraRegisterPlan(*arguments) != 0
        assert b"null" in c.TfLibraLastPlanError()
    assert c.TfLibraUnregisterPlan(None) != 0
    short = native.text_array(["a"])
    two_names = (type(short)._type_ * 2)(b"a", None)
    two = native.int_array([2])
    arguments = [b"p", b"d", 1, two, ones, ones, two_names, native.long_array([-1, -1]), 0, b""]
    assert c.TfLibraRegisterPlan(*arguments, 0, ones, ones, names) != 0
    assert b"fewer names" in c.TfLibraLastPlanError()
    assert c.TfLibraRegisterPlan(*good[:10], 1, two, ones, two_names) != 0
    assert b"gather_names holds fewer names" in c.TfLibraLastPlanError()


def test_the_same_plan_again_does_nothing_and_another_digest_is_rejected() -> None:
    plan = register([Group("ab")], digest="one")
    assert register([Group("ab")], plan=plan, digest="one") == plan
    assert native.load().c.TfLibraLastPlanError() == b""
    with pytest.raises(ValueError, match=r"'one'.*'two'"):
        register([Group("ab")], plan=plan, digest="two")


def test_unregistering_forgets_plan_and_report() -> None:
    builder = GraphBuilder()
    builder.step("ab")
    plan = register([Group("ab")])
    fuse(builder.graph, plan)
    assert report(plan)
    c = native.load().c
    assert c.TfLibraUnregisterPlan(plan.encode()) == 0
    assert report(plan) == {}
    assert c.TfLibraUnregisterPlan(plan.encode()) != 0
    assert b"not registered" in c.TfLibraLastPlanError()
    assert register([Group("ba")], plan=plan, digest="another") == plan


def test_a_plan_that_is_registered_twice_stays_until_it_is_unregistered_twice() -> None:
    plan = register([Group("ab")])
    register([Group("ab")], plan=plan)
    c = native.load().c
    assert c.TfLibraUnregisterPlan(plan.encode()) == 0
    builder = GraphBuilder()
    builder.step("ab")
    assert fused(fuse(builder.graph, plan))
    assert c.TfLibraUnregisterPlan(plan.encode()) == 0
    assert not fused(fuse(builder.graph, plan))
    assert "not registered" in reasons(plan)[plan]


def test_plan_that_is_set_again_is_active_again() -> None:
    builder = GraphBuilder()
    builder.step("ab")
    plan = register([Group("ab")])
    c = native.load().c
    for _ in range(3):
        assert fused(fuse(builder.graph, plan))
        assert c.TfLibraUnregisterPlan(plan.encode()) == 0
        register([Group("ab")], plan=plan)


def test_the_report_is_json_whatever_the_names() -> None:
    name = 'quo"te\\back\nline\ttab ünïcode'
    builder = GraphBuilder()
    builder.reduce("a", builder.source("x"), tensor=name)
    plan = register([Group([name])], plan='p"\\')
    fuse(builder.graph, plan)
    (group,) = report(plan)["graph"]["groups"]
    assert group["tensors"][0]["name"] == name


def test_plans_can_be_registered_from_many_threads() -> None:
    failures = []

    def work(worker: int) -> None:
        try:
            for i in range(50):
                register([Group("ab")], plan=f"shared {i}", digest="same")
                own = register([Group("ab")], plan=f"{worker} {i}")
                assert native.load().c.TfLibraUnregisterPlan(own.encode()) == 0
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
