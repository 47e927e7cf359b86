// A GraphDef with its nodes numbered, for walking along its edges.

#ifndef TF_LIBRA_PASSES_INDEXED_GRAPH_H_
#define TF_LIBRA_PASSES_INDEXED_GRAPH_H_

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "passes/control_flow_contexts.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Nodes are numbered as they stand in `def`, which has to outlive this.
struct IndexedGraph {
  const tensorflow::GraphDef* def = nullptr;
  std::unordered_map<absl::string_view, int> index;
  std::vector<std::vector<Fanin>> fanins;  // without the back edges of loops
  std::vector<int> order;                  // topological
  std::vector<int> contexts;
};

// Nullopt, with the reason, for a graph that is not well-formed.
std::optional<IndexedGraph> IndexGraph(const tensorflow::GraphDef& def, std::string* reason);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_INDEXED_GRAPH_H_
