// Control edges that make backward computation produce gradients in the order of the plan.

#ifndef TF_LIBRA_PASSES_BACKWARD_ORDER_H_
#define TF_LIBRA_PASSES_BACKWARD_ORDER_H_

#include <string>
#include <vector>

#include "passes/control_edges.h"
#include "passes/indexed_graph.h"

namespace tf_libra {

// One copy of a step: the nodes that produce the gradients of each group, in the plan's order, and
// the all-reduces that read them.
struct OrderedStep {
  std::vector<std::vector<std::string>> producers;
  std::vector<std::string> all_reduces;
};

// Returns the control edges that keep the order of the plan between the groups of each step.
//
// TensorFlow's executor may compute gradients of weights only after all gradients of activations,
// and another rank may choose another order. Then no gradient is ready while computation runs, or
// ranks wait for each other. So nodes that only a later group needs wait for the gradients of the
// earlier groups. Readers of reduced gradients, the optimizer's updates, wait for the last
// gradient: they should overlap the remaining all-reduces rather than delay them.
//
// Nodes within a group are not ordered. Between groups, as much as possible stays parallel. The
// weight gradients of a group's last layer and the activation gradient that leads on from there
// need the same input, so the activation gradient does not wait for them. The weight gradients of
// the next layer do, and so do the nodes that lead to the layer after that.
//
// Trivial nodes are not delayed (trivial_nodes.h).
//
// The edges close no cycle. Number the producers in the plan's order, and let a node's level be
// the number of the first producer that depends on it. No edge of the graph leads from a level to a
// lower one, and every wait leads from a producer to nodes of a higher level, or to readers of
// reduced gradients on which no producer depends. A while loop counts as one node (IndexedGraph).
// If TensorFlow merges a node with its only reader, the merged node waits for nothing that the
// reader did not wait for. Other nodes that TensorFlow may merge count as one node here, with one
// level (post_grappler_fusions.h).
//
// `steps` are the copies in `graph`, none before one that it depends on. Names that `graph` lacks
// are ignored. O(n log n) in nodes and edges, whatever the number of copies.
std::vector<ControlEdge> KeepBackwardOrder(const std::vector<OrderedStep>& steps,
                                           const IndexedGraph& graph);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_BACKWARD_ORDER_H_
