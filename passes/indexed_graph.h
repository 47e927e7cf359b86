// GraphDef with numbered nodes, for walks along its edges.

#ifndef TF_LIBRA_PASSES_INDEXED_GRAPH_H_
#define TF_LIBRA_PASSES_INDEXED_GRAPH_H_

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "passes/control_flow_contexts.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Nodes are numbered as they stand in `def`, which has to outlive this.
struct IndexedGraph {
  const tensorflow::GraphDef* def = nullptr;
  std::unordered_map<absl::string_view, int> index;
  // The inputs as they stand in `def`, but without the back edges of loops; for these, Exits have
  // further ones (loop_frames.h). So has what TensorFlow may merge (post_grappler_fusions.h).
  std::vector<std::vector<Fanin>> fanins;
  std::vector<int> order;  // topological
  // Of what a node outputs, and of what it takes: an Enter takes what is outside of the loop.
  std::vector<int> contexts;
  std::vector<int> input_contexts;
  std::vector<Conditions> conditions;                  // of each context
  std::vector<std::pair<int, int>> post_fusion_pairs;  // by pairs
};

// Nullopt, with the reason, for a graph that is not well-formed, or in which nodes wait for each
// other. A while loop counts as one node for all that is outside of it. O(nodes + edges), but for
// what is merged later.
std::optional<IndexedGraph> IndexGraph(const tensorflow::GraphDef& def, std::string* reason);

// Returns whether TensorFlow's executor reaches all nodes of `graph`, as far as edges decide that;
// else `why` names nodes that wait for each other. Grappler's own order of a graph does not tell,
// since it leaves out the back edges of loops.
bool IsLive(const tensorflow::GraphDef& graph, std::string* why);

// All nodes, each after its fanins; shorter than `fanins` if some wait for each other.
std::vector<int> TopologicalOrder(const std::vector<std::vector<Fanin>>& fanins);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_INDEXED_GRAPH_H_
