"""A rewriter from outside of the package: a library that is loaded, and the pass writes its op."""

import subprocess
from pathlib import Path

import pytest
import tensorflow as tf

from tests.passes.graphs import (
    GraphBuilder,
    Group,
    assert_acyclic,
    config,
    controls,
    data,
    nodes,
    optimize,
    reasons,
    register,
)
from tf_libra.internal import native
from tf_libra.profiling.executed_graph import PlacedAllReduce, gradient_sources, placed_all_reduces

ROOT = Path(__file__).resolve().parents[2]
OP = "ToyAllReduce"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Builds `toy_rewriter.cc` against the headers, and loads it."""
    path = tmp_path_factory.mktemp("toy") / "toy.so"
    source = Path(__file__).with_name("toy_rewriter.cc")
    ours = native.load().path
    command = ["g++", "-shared", "-fPIC", "-O1", "-DNDEBUG", f"-I{ROOT}", source, "-o", path]
    command += [*tf.sysconfig.get_compile_flags(), "-std=c++17"]
    command += [ours, f"-Wl,-rpath,{ours.parent}", *tf.sysconfig.get_link_flags()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tf.load_op_library(str(path))


@pytest.mark.usefixtures("toy")
def test_its_op_is_written_in_the_plans_order() -> None:
    builder = GraphBuilder()
    builder.step("abcde")
    plan = register([Group("cd", 2), Group("a", 1), Group("be", 4)])

    graph = optimize(builder.graph, config(plan, op=OP))

    assert_acyclic(graph)
    by_name = nodes(graph)
    prefix = f"tf_libra/{plan}/group_"
    written = [by_name[f"{prefix}{k}"] for k in range(3)]
    assert {node.op for node in written} == {OP}
    assert [node.attr["N"].i for node in written] == [2, 1, 2]
    assert [data(node) for node in written] == [
        ["grad_c", "grad_d"],
        ["grad_a"],
        ["grad_b", "grad_e"],
    ]
    assert [controls(node) for node in written] == [[], [f"{prefix}0"], [f"{prefix}1"]]
    assert controls(by_name[f"{prefix}1_done"]) == [f"{prefix}1"]
    assert not any(node.op == "LibraAllReduce" for node in graph.node)
    # Who reads the graph finds what the op itself does not know.
    assert placed_all_reduces([graph]) == (
        PlacedAllReduce(f"{prefix}0", 0, 2, ("c", "d")),
        PlacedAllReduce(f"{prefix}1", 1, 1, ("a",)),
        PlacedAllReduce(f"{prefix}2", 2, 4, ("b", "e")),
    )
    assert gradient_sources([graph]).producers["b"] == ("grad_b",)


@pytest.mark.usefixtures("toy")
def test_rejected_all_reduce_stays() -> None:
    builder = GraphBuilder()
    builder.reduce("a", builder.source("grad_a"))
    builder.reduce("b", builder.source("grad_b", dtype=tf.float64), "^a", dtype=tf.float64)
    plan = register([Group("ab")])

    by_name = nodes(optimize(builder.graph, config(plan, op=OP)))

    assert by_name["b"].op == "LibraAllReduce"
    assert "a toy reduces floats alone" in reasons(plan)["b"]


def test_an_op_without_a_rewriter_is_named() -> None:
    builder = GraphBuilder()
    builder.step("ab")
    plan = register([Group("ab")])

    graph = optimize(builder.graph, config(plan, op="NobodysOp"))

    assert nodes(graph)["a"].op == "LibraAllReduce"
    assert "no rewriter writes op 'NobodysOp', only " in reasons(plan)[plan]
