// Control edges between numbered nodes of a graph.

#ifndef TF_LIBRA_PASSES_CONTROL_EDGES_H_
#define TF_LIBRA_PASSES_CONTROL_EDGES_H_

#include <string>
#include <vector>

#include "passes/indexed_graph.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// All nodes of `after` wait for all nodes of `before`. All of them have one device and one context.
struct ControlEdge {
  std::vector<int> before;
  std::vector<int> after;
};

// Returns whether `edges` close a cycle in `graph`. O(nodes + edges).
bool CloseCycle(const std::vector<ControlEdge>& edges, const IndexedGraph& graph);

// Writes `edges` as control inputs to `def`, whose nodes `graph` has indexed. If a NoOp in between
// takes fewer inputs, adds one, whose name begins with `prefix`.
void WriteControlEdges(const std::vector<ControlEdge>& edges, const IndexedGraph& graph,
                       const std::string& prefix, tensorflow::GraphDef* def);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_CONTROL_EDGES_H_
