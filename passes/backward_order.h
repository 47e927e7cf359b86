// Makes backward computation produce gradients in the order of the plan, and before all else.

#ifndef TF_LIBRA_PASSES_BACKWARD_ORDER_H_
#define TF_LIBRA_PASSES_BACKWARD_ORDER_H_

#include <string>
#include <vector>

#include "passes/indexed_graph.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// What one copy of a step has: the nodes that produce gradients, in the plan's order, and the
// all-reduces that read them.
struct OrderedStep {
  std::vector<std::string> producers;
  std::vector<std::string> all_reduces;
};

// A control edge to be, between nodes of a graph by their numbers.
struct ControlEdge {
  int from;
  int to;
};

// Left to itself, TensorFlow's executor may put off the gradients of weights until the gradients
// of all activations are there, and another rank may choose otherwise: then nothing is ready to
// be all-reduced beside computation, or the ranks wait for each other. So what only a later
// gradient needs is made to wait, by control edges, until the earlier ones are there. And what
// is done with reduced gradients, the optimizer's updates, waits for the last gradient: it is
// better done beside the all-reduces that are still under way than before they can start.
//
// `steps` are the copies in `graph`, none before one that it depends on; nodes that `graph` does
// not have are passed over. With A(k) all that leads to producers 0 to k, counted through all
// copies, edges run from producers 0..k to nodes of A(k+1) outside of A(k), and all other edges
// among these nodes run likewise or stay inside a layer; what reads an all-reduce waits only if no
// producer of its copy or an earlier one depends on it. So no cycle can come of it, whatever the
// order is. A gradient that needs one op more than the earlier ones is not held up, as nothing else
// waits for it. Edges stay within one control flow context.
//
// O(nodes + edges), however many copies there are.
std::vector<ControlEdge> BackwardOrderEdges(const std::vector<OrderedStep>& steps,
                                            const IndexedGraph& graph);

// Whether `edges` close a cycle in `graph`. O(nodes + edges).
bool CloseCycle(const std::vector<ControlEdge>& edges, const IndexedGraph& graph);

// Adds to `def` those of `edges`, between its nodes as they stand in it, that it does not have.
void AddControlEdges(const std::vector<ControlEdge>& edges, tensorflow::GraphDef* def);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_BACKWARD_ORDER_H_
