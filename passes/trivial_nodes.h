// Nodes that compute nothing worth delaying.

#ifndef TF_LIBRA_PASSES_TRIVIAL_NODES_H_
#define TF_LIBRA_PASSES_TRIVIAL_NODES_H_

#include <vector>

#include "passes/indexed_graph.h"

namespace tf_libra {

// Returns, by node, whether it is trivial: a constant, a value that follows from constants and
// shapes alone, a variable, an argument, or an op that forwards such values. Other passes may move
// these nodes, since they have nothing to wait for. O(nodes + edges).
std::vector<bool> FindTrivialNodes(const IndexedGraph& graph);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_TRIVIAL_NODES_H_
