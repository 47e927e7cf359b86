// Control edges that make backward computation produce gradients in the order of the plan, group
// by group.

#ifndef TF_LIBRA_PASSES_BACKWARD_ORDER_H_
#define TF_LIBRA_PASSES_BACKWARD_ORDER_H_

#include <string>
#include <vector>

#include "passes/indexed_graph.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// What one copy of a step has: the nodes that produce the gradients of each group, in the plan's
// order, and the all-reduces that read them.
struct OrderedStep {
  std::vector<std::vector<std::string>> producers;
  std::vector<std::string> all_reduces;
};

// All of `after`, on one device and in one context, run when all of `before` have run. Nodes by
// their numbers.
struct ControlEdge {
  std::vector<int> before;
  std::vector<int> after;
};

// Left to itself, TensorFlow's executor may put off the gradients of weights until the gradients of
// all activations are there, and another rank may choose otherwise: then nothing is ready to be
// all-reduced concurrently with computation, or the ranks wait for each other. So nodes that only a
// later group needs are made to wait for the gradients of the groups before it. The use of reduced
// gradients, the optimizer's updates, waits for the last gradient: updates are better done
// concurrently with the all-reduces that are still under way than before they can start.
//
// Within a group nothing is ordered. Between groups as much stays side by side as can: the
// gradients of weights of a group's last layer and the gradient of activations that leads on from
// there need the same input, so the latter does not wait for them; the next layer's gradients of
// weights do, and so does what leads to the layer after that.
//
// What is no computation is not held up: constants, shapes, variables, what has no inputs.
//
// Why no cycle can come of it. Number the producers in the plan's order, and let a node's level be
// the number of the first producer that it leads to. No edge of the graph leads from a level to a
// lower one, and every wait leads from a producer to nodes of a higher level, or to readers of
// reduced gradients that lead to no producer. A while loop counts as one node (IndexedGraph). Where
// TensorFlow merges a node with the only one that reads it, the merged node waits for nothing that
// the reader did not wait for. What it merges besides counts as one node here, of one level
// (post_grappler_fusions.h).
//
// `steps` are the copies in `graph`, none before one that it depends on; nodes that `graph` does
// not have are passed over. O(n log n) in nodes and edges, however many copies there are.
std::vector<ControlEdge> KeepBackwardOrder(const std::vector<OrderedStep>& steps,
                                           const IndexedGraph& graph);

// Returns whether `waits` close a cycle in `graph`. O(nodes + edges).
bool CloseCycle(const std::vector<ControlEdge>& waits, const IndexedGraph& graph);

// Writes `waits` as control edges to `def`, whose nodes `graph` has indexed; where the edges would
// be many, through a NoOp, whose name begins with `prefix`.
void WriteControlEdges(const std::vector<ControlEdge>& waits, const IndexedGraph& graph,
                       const std::string& prefix, tensorflow::GraphDef* def);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_BACKWARD_ORDER_H_
