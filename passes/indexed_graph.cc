#include "passes/indexed_graph.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/grappler/op_types.h"
#include "tensorflow/core/grappler/utils/topological_sort.h"

namespace tf_libra {

using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::TensorId;

std::optional<IndexedGraph> IndexGraph(const GraphDef& def, std::string* reason) {
  IndexedGraph graph;
  graph.def = &def;
  graph.fanins.resize(def.node_size());
  for (int i = 0; i < def.node_size(); ++i) {
    if (!graph.index.emplace(def.node(i).name(), i).second) {
      *reason = absl::StrCat("two nodes have the name '", def.node(i).name(), "'");
      return std::nullopt;
    }
  }
  for (int i = 0; i < def.node_size(); ++i) {
    for (const std::string& input : def.node(i).input()) {
      const TensorId id = tensorflow::ParseTensorName(input);
      const auto found = graph.index.find(id.node());
      if (found == graph.index.end()) {
        *reason = absl::StrCat("'", def.node(i).name(), "' has an input '", input,
                               "' that is not in the graph");
        return std::nullopt;
      }
      if (tensorflow::grappler::IsMerge(def.node(i)) &&
          tensorflow::grappler::IsNextIteration(def.node(found->second))) {
        continue;
      }
      graph.fanins[i].push_back({found->second, id.index()});
    }
  }
  std::vector<const NodeDef*> order;
  const absl::Status status = tensorflow::grappler::ComputeTopologicalOrder(def, &order);
  if (!status.ok()) {
    *reason = absl::StrCat("no topological order: ", status.message());
    return std::nullopt;
  }
  for (const NodeDef* node : order) graph.order.push_back(graph.index.at(node->name()));
  graph.contexts = ControlFlowContexts(def, graph.fanins, graph.order);
  return graph;
}

}  // namespace tf_libra
