"""Random graphs of whole pieces of real ones, in the ops that TensorFlow writes them in."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2

from tests.drawing import fractions, pick
from tests.passes.graphs import GraphBuilder, Group, tensor_names

FLOAT = tf.float32.as_datatype_enum
BOTH = ("/device:CPU:0", "/device:CPU:1")


class TrainingGraph(GraphBuilder):
    """Adds whole pieces of real graphs, in the ops that TensorFlow writes them in."""

    def op(self, op: str, name: str, *inputs: str, device: str = "") -> str:
        self.node(op, name, inputs, device).attr["T"].type = FLOAT
        return name

    def cast(self, name: str, source: str) -> str:
        node = self.node("Cast", name, [source])
        node.attr["SrcT"].type = node.attr["DstT"].type = FLOAT
        return name

    def convolution(self, name: str, gradient: str, activation: str) -> tuple[str, str]:
        """The gradients of a convolution's bias and filter, from the gradient of its output."""
        bias = self.op("BiasAddGrad", f"{name}/bias", gradient)
        self.source(f"{name}/shape", f"^{gradient}", dtype=tf.int32)
        self.op("Conv2DBackpropFilter", f"{name}/filter", activation, f"{name}/shape", gradient)
        strides = self.graph.node[-1].attr["strides"].list.i
        strides.extend([1, 1, 1, 1])
        self.graph.node[-1].attr["padding"].s = b"SAME"
        return bias, f"{name}/filter"

    def conditional(self, name: str, source: str, reduces: str = "") -> str:
        """Adds a `tf.cond`'s ops; the branches that `reduces` names ("then", "else") all-reduce."""
        predicate = self.node("Const", f"{name}/if").name
        self.graph.node[-1].attr["dtype"].type = tf.bool.as_datatype_enum
        self.graph.node[-1].attr["value"].tensor.CopyFrom(tf.make_tensor_proto(False))
        self.op("Switch", f"{name}/switch", source, predicate)
        results = []
        for port, branch in enumerate(("else", "then")):
            result = self.add(f"{name}/{branch}", f"{name}/switch:{port}")
            if branch in reduces:
                result = self.reduce(f"{name}/r{branch}", result, tensor=name)
            results.append(result)
        self.op("Merge", f"{name}/merge", *results)
        self.graph.node[-1].attr["N"].i = 2
        return f"{name}/merge"

    def loop(self, name: str, *sources: str, reduces: bool = False) -> list[str]:
        """A while loop whose every value is made of all that it takes, and what it puts out.

        With `reduces` the first of its values is all-reduced in each iteration.
        """

        def enter(source: str, to: str, is_constant: bool = False) -> str:
            self.op("Enter", to, source)
            self.graph.node[-1].attr["frame_name"].s = name.encode()
            self.graph.node[-1].attr["is_constant"].b = is_constant
            return to

        sources = (self.source(f"{name}/count"), *sources)
        for i, source in enumerate(sources):
            enter(source, f"{name}/enter{i}")
            self.op("Merge", f"{name}/merge{i}", f"{name}/enter{i}", f"{name}/next{i}")
            self.graph.node[-1].attr["N"].i = 2
        enter(sources[-1], f"{name}/constant", is_constant=True)
        self.source(f"{name}/limit", f"^{name}/merge0")
        self.op("Less", f"{name}/less", f"{name}/merge0", f"{name}/limit")
        self.node("LoopCond", f"{name}/while", [f"{name}/less"])
        for i, _ in enumerate(sources):
            self.op("Switch", f"{name}/switch{i}", f"{name}/merge{i}", f"{name}/while")
        for i, _ in enumerate(sources):
            others = [f"{name}/switch{j}:1" for j in range(len(sources)) if i]
            self.add(f"{name}/body{i}", f"{name}/switch{i}:1", *others, f"{name}/constant")
            body = f"{name}/body{i}"
            if reduces and i == 1:
                body = self.reduce(f"{name}/r", body, tensor=name)
            self.op("NextIteration", f"{name}/next{i}", body)
            self.op("Exit", f"{name}/exit{i}", f"{name}/switch{i}")
        return [f"{name}/exit{i}" for i, _ in enumerate(sources) if i]


@st.composite
def training_graphs(draw: st.DrawFn, several_devices: bool = False) -> graph_pb2.GraphDef:
    """Pieces of graphs in any order, of which some gradients are all-reduced."""
    builder = TrainingGraph()
    builder.source("dims", dtype=tf.int32)
    builder.node("RandomUniform", "x", ["dims"]).attr["dtype"].type = FLOAT
    builder.graph.node[-1].attr["T"].type = tf.int32.as_datatype_enum
    values = ["x"]
    kinds = ("add", "add", "add", "const", "cast", "convolution", "if", "loop", "reduced")
    for i in range(draw(st.integers(2, 12))):
        kind = draw(st.sampled_from(kinds))
        value = st.sampled_from(values)
        name = f"n{i}"
        gradients: list[str] = []
        if kind == "add":
            some = draw(st.lists(value, min_size=1, max_size=3))
            gradients = [builder.add(name, *some, *(f"^{v}" for v in {draw(value)} - set(some)))]
            if several_devices:
                builder.graph.node[-1].device = draw(st.sampled_from(BOTH))
        elif kind == "const":
            gradients = [builder.source(name, f"^{draw(value)}")]
        elif kind == "cast":
            gradients = [builder.cast(name, draw(value))]
        elif kind == "convolution":
            gradients = list(builder.convolution(name, draw(value), draw(value)))
        elif kind == "if":
            gradients = [builder.conditional(name, draw(value))]
        elif kind == "loop":
            gradients = builder.loop(name, *draw(st.lists(st.sampled_from(values), min_size=1,
                                                          max_size=2)))  # fmt: skip
        else:
            reduced = [node.name for node in builder.graph.node if node.op == "LibraAllReduce"]
            if reduced:
                values.append(builder.add(name, draw(st.sampled_from(reduced))))
            continue
        values += gradients
        for gradient in gradients:
            if draw(st.integers(0, 2)):
                builder.reduce(f"r{gradient}", gradient)
                builder.identity(f"update/{gradient}", f"r{gradient}")
    shuffled = graph_pb2.GraphDef(versions=builder.graph.versions)
    shuffled.node.extend(draw(st.permutations(builder.graph.node)))
    return shuffled


@st.composite
def marked_graphs(draw: st.DrawFn) -> graph_pb2.GraphDef:
    """Pieces of graphs with all-reduces anywhere: one behind the other, in branches and in loops.

    Some tensors are all-reduced more than once, as by copies of a step; some all-reduces are on
    another device; some have a control edge from one before, as a trace has.
    """
    drawn = iter(fractions(draw, 1 + 12 * 6).tolist())  # no piece takes more

    def one_of(some: Sequence) -> Any:
        return pick(some, next(drawn))

    def some_of(values: Sequence[str]) -> list[str]:
        return [one_of(values) for _ in range(one_of((1, 2)))]

    builder = TrainingGraph()
    builder.source("x")
    values, reduced = ["x"], [""]
    pieces = ("add", "reduce", "reduce", "reduce", "cast", "const", "convolution", "if", "loop")
    for i in range(one_of(range(2, 13))):
        name = f"n{i}"
        piece = one_of(pieces)
        if piece == "add":
            some = some_of(values)
            controls = {one_of(values)} - set(some) if one_of((False, True)) else set()
            values.append(builder.add(name, *some, *(f"^{v}" for v in controls)))
        elif piece == "cast":
            values.append(builder.cast(name, one_of(values)))
        elif piece == "const":
            values.append(builder.source(name, f"^{one_of(values)}"))
        elif piece == "convolution":
            values += builder.convolution(name, one_of(values), one_of(values))
        elif piece == "if":
            reduces = one_of(("", "", "then", "then and else"))
            values.append(builder.conditional(name, one_of(values), reduces))
        elif piece == "loop":
            sources = some_of(values)
            values += builder.loop(name, *sources, reduces=one_of(range(4)) == 0)
        else:
            tensor = f"t{one_of(range(3)) if one_of(range(6)) == 0 else i}"
            before = one_of(reduced)
            device = one_of((*BOTH[:1] * 4, BOTH[1]))
            traced = [f"^{before}"] if before else []
            builder.reduce(name, one_of(values), *traced, tensor=tensor, device=device)
            values.append(name)
            reduced.append(name)
    order = np.argsort(fractions(draw, len(builder.graph.node)), kind="stable")
    shuffled = graph_pb2.GraphDef(versions=builder.graph.versions)
    shuffled.node.extend(builder.graph.node[i] for i in order.tolist())
    return shuffled


def cases_of(
    plans: Callable[[list[str]], st.SearchStrategy[list[Group]]],
) -> st.SearchStrategy[tuple[graph_pb2.GraphDef, list[Group], bool]]:
    """Marked graphs, each with a plan of its tensors, and whether that is for after backward."""

    graphs, either = marked_graphs(), st.booleans()

    @st.composite
    def cases(draw: st.DrawFn) -> tuple[graph_pb2.GraphDef, list[Group], bool]:
        graph = draw(graphs)
        tensors = [name for node in graph.node for name in tensor_names(node)]
        return graph, draw(plans(tensors)), draw(either)

    return cases()
