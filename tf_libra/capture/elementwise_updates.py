"""Analysis of a traced step: which weights an owner of a part could update by itself.

An update is element-wise if element i of a weight, and of its slots, depends only on element i of
its gradient, of the weight and of the slots, and on values that are the same for every element.
Then the rank that owns a part of the averaged gradient can update that part alone (ZeRO-1, arXiv
2004.13336).

Tensors count as row-major vectors, so reshaping keeps elements in place. The walk gives every value
two kinds of labels. `i` is aligned with a value if element j of the value depends on element j of
root i, at most. A value is mixed from root i if any element may depend on any element. A root is a
gradient that is all-reduced, or the content of a variable. An all-reduce ends every dependency: the
gradients that depend on a weight are computed after all parts of the weight have been gathered.

A sum of all elements, as of a norm, is no mixture if ranks add the sums of their parts: every
element then depends on one number that all ranks have.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tf_libra.capture.dataflow.interpreter import Frame, Interpreter, Value, members, union
from tf_libra.capture.dataflow.traced_graph import (
    WRITES,
    Body,
    Node,
    TracedGraph,
    handle_inputs,
    size_of,
    sizes_in,
)

# Ops whose output i depends on element i of each operand of the output's size.
_ELEMENTWISE = re.compile(
    r"(Abs|Add|AddN|AddV2|BroadcastTo|Cast|Ceil|ClipByValue|Div|DivNoNan|Equal|Erf|Exp|Expm1"
    r"|Floor|FloorDiv|FloorMod|Greater|GreaterEqual|Identity|Inv|IsFinite|IsInf|IsNan|Less"
    r"|LessEqual|Log|Log1p|LogicalAnd|LogicalNot|LogicalOr|Maximum|Minimum|Mod|Mul|MulNoNan"
    r"|Neg|NotEqual|Pow|PreventGradient|RealDiv|Reciprocal|Relu|Rint|Round|Rsqrt|Select"
    r"|SelectV2|Sigmoid|Sign|Snapshot|Softplus|Softsign|Sqrt|Square|SquaredDifference"
    r"|StopGradient|Sub|Tanh|TruncateDiv|Xdivy|Xlogy)$"
)
# Ops that keep the elements of their first operand, in order; the other operands are shapes.
_RESHAPES = frozenset({"ExpandDims", "Reshape", "Squeeze"})
# Ops whose outputs depend on the shapes of their operands alone.
_READS_SHAPE = re.compile(
    r"(BroadcastGradientArgs|OnesLike|Rank|Shape|ShapeN|Size|VariableShape|ZerosLike"
    r"|VarIsInitializedOp)$"
)
# Dense updates of TensorFlow's optimizers; operands are handles, scalars and the gradient.
_APPLIES = re.compile(
    r"ResourceApply(AdaMax|Adadelta|Adagrad|AdagradDA|AdagradV2|Adam|AdamWithAmsgrad|AddSign"
    r"|CenteredRMSProp|Ftrl|FtrlV2|GradientDescent|KerasMomentum|Momentum|PowerSign"
    r"|ProximalAdagrad|ProximalGradientDescent|RMSProp)$"
)
# Ops that combine the truth values of all elements, if their result is a single element.
EXACT_SUMS = frozenset({"All", "Any"})
# Also ops that sum all elements or their squares, whose last bits depend on the order.
SUMS = EXACT_SUMS | {"L2Loss", "Sum"}
_ASSIGNS = frozenset({"AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp"})
_UNKNOWN = -1


@dataclass(frozen=True)
class WeightUpdate:
    """The update that one averaged gradient takes part in.

    Attributes:
        gradient: name of the gradient.
        variables: inputs of the graph that are aligned with the gradient, the updated weight and
            its slots, ascending. Others that depend on the gradient depend on its readers. Empty if
            all that is written combines different elements of the gradient.
        mixed_by: node and op that combine different elements, as "clip/Sum (Sum)"; None if the
            update is element-wise.
        readers: nodes that combine different elements of the gradient.
        variable_readers: nodes that combine different elements of a variable, by its input. For the
            weight, these are above all the nodes of the next forward pass.
        sums: sums that ranks add, of the gradient and others, as "Sum of kernel".
        variable_sums: sums that ranks add, of a variable and others, by its input.
    """

    gradient: str
    variables: tuple[int, ...]
    mixed_by: str | None
    readers: tuple[str, ...]
    variable_readers: Mapping[int, tuple[str, ...]]
    sums: tuple[str, ...] = ()
    variable_sums: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_elementwise(self) -> bool:
        """Returns whether each element is updated independently of the others."""
        return self.mixed_by is None


def find_weight_updates(
    trace: TracedGraph,
    results: Iterable[tuple[str, int]] = (),
    sums: Collection[str] = frozenset(),
) -> tuple[WeightUpdate, ...]:
    """Finds the update of each gradient that a trace all-reduces.

    Args:
        trace: of a finished graph, read with sizes.
        results: references of the tensors that the function returns.
        sums: those of `SUMS` whose results for owned parts ranks combine, so that they mix nothing.

    Returns:
        One for each dense gradient that reaches a variable, in the order of their names.
    """
    walk = _ElementInterpreter(trace, sums)
    frame = walk.run(trace.body, {name: walk.root(name) for name in trace.body.arguments})
    for reference in results:
        walk.read_whole(frame.at(reference), "a result of the step")
    return _Components(walk).updates()


@dataclass(frozen=True)
class _Mix:
    """A label of a value that is mixed from a root by a node."""

    root: int  # label
    node: str


class _ElementInterpreter(Interpreter):
    """Labels are roots, for aligned values, and mixtures of roots.

    The label of an argument of the graph stands for the argument itself, and for the content of the
    variable whose handle the argument is.

    Attributes:
        labels: argument names, gradients as ("gradient", name), and mixtures, by label.
        readers: nodes that mix or return each root.
        sums: nodes that sum all elements of values, with the op and the roots of the values.
    """

    def __init__(self, trace: TracedGraph, sums: Collection[str]) -> None:
        super().__init__(trace.functions)
        self._combined = sums
        self.labels: list[str | tuple[str, str] | _Mix] = []
        self.readers: dict[int, dict[str, None]] = {}
        self.sums: dict[tuple[str, str, int], None] = {}
        self._numbers: dict[str | tuple[str, str] | _Mix, int] = {}
        self._mixtures = 0  # the set of all labels that are mixtures
        self._sizes: Mapping[str, tuple[int, ...]] = {}
        for name in trace.body.arguments:
            self.root(name)

    def root(self, key: str | tuple[str, str] | _Mix) -> int:
        """Returns the set of one label, which is new if it is not known."""
        if key not in self._numbers:
            self._numbers[key] = len(self.labels)
            self.labels.append(key)
            if isinstance(key, _Mix):
                self._mixtures |= 1 << self._numbers[key]
        return 1 << self._numbers[key]

    def read_whole(self, labels: int, reader: str) -> None:
        """Records that `reader` reads all elements of aligned values."""
        for label in members(labels & ~self._mixtures):
            self.readers.setdefault(label, {})[reader] = None

    def decide(self, node: Node, predicate: int) -> int:
        return self._mix(node, predicate)

    def evaluate(self, node: Node, frame: Frame) -> Value:
        if node.op == "LibraAllReduce":
            return tuple(self.root(("gradient", name)) for name in node.tensor_names)
        inputs = frame.inputs(node)
        value = self.control_flow(node, inputs, frame.condition)
        return self._evaluate_op(node, inputs, frame.condition) if value is None else value

    def evaluate_opaque(self, node: Node, inputs: Sequence[int], condition: int) -> int:
        labels = self._mix(node, union(inputs))
        for function in node.functions:
            arguments = self.opaque_arguments(function, inputs, labels)
            self.call(function, arguments, condition | labels)
        return labels

    def _evaluate_body(self, body: Body, arguments: Mapping[str, int], condition: int) -> Frame:
        before = self._sizes
        self._sizes = sizes_in(body)
        try:
            return super()._evaluate_body(body, arguments, condition)
        finally:
            self._sizes = before

    def _evaluate_op(self, node: Node, inputs: list[int], condition: int) -> int:
        if _READS_SHAPE.match(node.op):
            return 0
        if node.op == "ReadVariableOp" or (node.op == "Identity" and node.is_resource):
            return union(inputs)
        if WRITES.match(node.op):
            return self._write_to_variables(node, inputs, condition)
        if node.op in _RESHAPES:
            return inputs[0] | self._mix(node, union(inputs[1:]))
        if _ELEMENTWISE.match(node.op):
            operands = list(zip(node.inputs, inputs, strict=True))
            return self._align(node, operands, node.sizes[0] if node.sizes else _UNKNOWN)
        if node.op in self._combined and self._sums_all(node):
            roots = inputs[0] & ~self._mixtures
            self.sums[node.name, node.op, roots] = None
            return inputs[0] & self._mixtures | self._mix(node, union(inputs[1:]))
        return self._mix(node, union(inputs))

    def _sums_all(self, node: Node) -> bool:
        """Returns whether a node sums all elements, and over all axes, as the graph pass assumes.

        A sum over some axes may have a single element, too, but other dimensions.
        """
        if tuple(node.sizes) != (1,):
            return False
        return node.rank == (size_of(node.inputs[1], self._sizes) if node.keeps_dims else 0)

    def _write_to_variables(self, node: Node, inputs: list[int], condition: int) -> int:
        positions = handle_inputs(node.op, len(inputs))
        written = union(inputs[i] for i in positions)
        pairs = enumerate(zip(node.inputs, inputs, strict=True))
        operands = [pair for i, pair in pairs if i not in positions]
        if node.op in _ASSIGNS or _APPLIES.match(node.op):
            # The assigned value, or the gradient, is the largest operand.
            sizes = [size_of(reference, self._sizes) for reference, _ in operands]
            value = self._align(node, operands, max(sizes, default=_UNKNOWN))
            value |= 0 if node.op == "AssignVariableOp" else written
        else:  # an update of rows, or an unknown update
            value = self._mix(node, union(labels for _, labels in operands) | written)
        for variable in members(written):
            self.write(variable, value | self._mix(node, condition))
        return value

    def _align(self, node: Node, operands: Sequence[tuple[tuple[str, int], int]], size: int) -> int:
        """Returns the labels of operands, mixed if their size is not that of the result.

        An operand that is neither a scalar nor of that size, such as a row, mixes all.

        Args:
            node: combines the operands.
            operands: references, each with its labels.
            size: size of the result.
        """
        sizes = [size_of(reference, self._sizes) for reference, _ in operands]
        if not set(sizes) <= {1, size}:
            return self._mix(node, union(labels for _, labels in operands))
        return union(
            labels if own == size != _UNKNOWN else self._mix(node, labels)
            for own, (_, labels) in zip(sizes, operands, strict=True)
        )

    def _mix(self, node: Node, labels: int) -> int:
        aligned = labels & ~self._mixtures
        if not aligned:
            return labels
        where = f"{node.name} ({node.op})"
        self.read_whole(aligned, where)
        return (labels & self._mixtures) | union(
            self.root(_Mix(label, where)) for label in members(aligned)
        )


class _Components:
    """The weights and slots of each gradient, and the variables that depend on mixtures of them."""

    def __init__(self, walk: _ElementInterpreter) -> None:
        self._walk = walk
        self._aligned: dict[int, set[int]] = {}  # roots, by written variable
        self._mixed: dict[int, dict[int, str]] = {}  # roots with the node, by written variable
        for variable, labels in walk.writes.items():
            self._aligned[variable], self._mixed[variable] = set(), {}
            for label in members(labels):
                key = walk.labels[label]
                if isinstance(key, _Mix):
                    self._mixed[variable].setdefault(key.root, key.node)
                else:
                    self._aligned[variable].add(label)

    def updates(self) -> tuple[WeightUpdate, ...]:
        gradients = {
            key[1]: label for label, key in enumerate(self._walk.labels) if isinstance(key, tuple)
        }
        owned = {name: self._members(gradients[name]) for name in sorted(gradients)}
        every = set().union(*owned.values())
        roots = every | {gradients[name] for name, found in owned.items() if found}
        coupled = self._coupled(roots, every)
        mixed = {root: node for mixes in self._mixed.values() for root, node in mixes.items()}
        return tuple(
            WeightUpdate(
                name,
                tuple(sorted(found)),
                next((coupled[root] for root in sorted(found) if root in coupled), None)
                if found
                else mixed[gradients[name]],
                tuple(self._walk.readers.get(gradients[name], ())),
                {
                    root: tuple(self._walk.readers[root])
                    for root in sorted(found)
                    if root in self._walk.readers
                },
                self._sums_of(gradients[name]),
                {root: sums for root in sorted(found) if (sums := self._sums_of(root))},
            )
            for name, found in owned.items()
            if found or gradients[name] in mixed
        )

    def _sums_of(self, root: int) -> tuple[str, ...]:
        """Returns the sums of a root, in words that all ranks have in common."""
        found = []
        for _, op, roots in self._walk.sums:
            if roots >> root & 1:
                keys = [self._walk.labels[label] for label in members(roots)]
                names = sorted(key[1] if isinstance(key, tuple) else "a variable" for key in keys)
                found.append(f"{op} of {' and '.join(names)}")
        return tuple(sorted(found))

    def _members(self, gradient: int) -> set[int]:
        """Returns the variables that are aligned with a gradient, directly or through others."""
        found = {gradient}
        grows = True
        while grows:
            more = {root for root, roots in self._aligned.items() if roots & found} - found
            found |= more
            grows = bool(more)
        return found - {gradient}

    def _coupled(self, roots: set[int], every: set[int]) -> dict[int, str]:
        """Returns the variables that depend on a mixture of roots, with the node that mixes."""
        coupled: dict[int, str] = {}
        grows = True
        while grows:
            grows = False
            for variable, mixed in self._mixed.items():
                if variable in coupled:
                    continue
                through = [
                    coupled[neighbor] for neighbor in self._aligned[variable] if neighbor in coupled
                ]
                for root, node in mixed.items():
                    if root in coupled:
                        through.append(coupled[root])
                    elif root in roots:
                        through.append(node)
                if through:
                    coupled[variable] = through[0]
                    grows = True
        return coupled
