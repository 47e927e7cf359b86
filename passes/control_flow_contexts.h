// Under which conditions, and in which loop, each node of a graph runs.

#ifndef TF_LIBRA_PASSES_CONTROL_FLOW_CONTEXTS_H_
#define TF_LIBRA_PASSES_CONTROL_FLOW_CONTEXTS_H_

#include <vector>

#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Context of every node of `graph`, as a small integer: 0 outside of all control flow. Two nodes
// with the same context run under the same branches of the same conditionals (lowered to Switch
// and Merge) and in the same frame of a while loop, so an edge between them neither crosses a
// frame nor lets a branch that was not taken switch the other node off.
//
// `fanins[i]` are the (node, output port) pairs that node i consumes, port -1 for control edges,
// without the back edges of loops; `order` is a topological order of the nodes.
struct Fanin {
  int node;
  int port;
};
std::vector<int> ControlFlowContexts(const tensorflow::GraphDef& graph,
                                     const std::vector<std::vector<Fanin>>& fanins,
                                     const std::vector<int>& order);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_CONTROL_FLOW_CONTEXTS_H_
