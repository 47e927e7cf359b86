// GraphDef with numbered nodes, for searches along its edges.

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

// Node numbers are positions in `def`, which must outlive this object.
struct IndexedGraph {
  const tensorflow::GraphDef* def = nullptr;
  std::unordered_map<absl::string_view, int> index;
  // The inputs in `def`, without the back edges of loops, but with the edges that replace them
  // (loop_frames.h) and those of ops that TensorFlow may merge (post_grappler_fusions.h).
  std::vector<std::vector<Fanin>> fanins;
  std::vector<int> order;  // topological
  // Contexts of a node's outputs and inputs; the inputs of an Enter are outside of the loop.
  std::vector<int> contexts;
  std::vector<int> input_contexts;
  std::vector<Conditions> conditions;                  // of each context
  std::vector<std::pair<int, int>> post_fusion_pairs;  // nodes that TensorFlow may merge
};

// Returns nullopt, with the reason, for a graph that is malformed or has a cycle of waits. From
// outside, a while loop counts as one node. O(nodes + edges), plus AddPostFusionEdges.
std::optional<IndexedGraph> IndexGraph(const tensorflow::GraphDef& def, std::string* reason);

// Returns whether TensorFlow's executor reaches all nodes of `graph`, by its edges; otherwise `why`
// names nodes that wait for each other. Grappler's topological order cannot decide that, since it
// ignores the back edges of loops.
bool IsLive(const tensorflow::GraphDef& graph, std::string* why);

// Returns all nodes, each after its fanins; fewer if some wait for each other.
std::vector<int> TopologicalOrder(const std::vector<std::vector<Fanin>>& fanins);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_INDEXED_GRAPH_H_
