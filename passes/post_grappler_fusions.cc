#include "passes/post_grappler_fusions.h"

#include <map>
#include <unordered_set>

#include "absl/strings/string_view.h"
#include "passes/contracted_dag.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_libra {
namespace {

using Pairs = std::vector<std::pair<int, int>>;

// The gradients of a bias, each with those of a filter that read the same.
Pairs FindPairs(const tensorflow::GraphDef& graph, const std::vector<int>& contexts,
                const std::vector<std::vector<Fanin>>& fanins) {
  static const auto& filter_gradients = *new std::unordered_set<absl::string_view>{
      "Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"};
  struct Readers {
    std::vector<int> biases;
    std::vector<int> filters;
  };
  std::map<std::pair<int, int>, Readers> readers;  // of a node's output
  for (int i = 0; i < graph.node_size(); ++i) {
    const tensorflow::NodeDef& node = graph.node(i);
    const auto of_input = [&](size_t input) -> Readers& {
      const Fanin& fanin = fanins[i][input];
      return readers[{fanin.node, fanin.port}];
    };
    if (node.op() == "BiasAddGrad" && !fanins[i].empty()) {
      of_input(0).biases.push_back(i);
    } else if (filter_gradients.count(node.op()) > 0 && fanins[i].size() > 2) {
      of_input(2).filters.push_back(i);
    }
  }
  Pairs pairs;
  for (const auto& entry : readers) {
    for (const int bias : entry.second.biases) {
      for (const int filter : entry.second.filters) {
        if (contexts[bias] == contexts[filter]) pairs.emplace_back(bias, filter);
      }
    }
  }
  return pairs;
}

}  // namespace

Pairs AddPostFusionEdges(const tensorflow::GraphDef& graph, const std::vector<int>& contexts,
                         const std::vector<int>& order, std::vector<std::vector<Fanin>>* fanins) {
  const Pairs candidates = FindPairs(graph, contexts, *fanins);
  if (candidates.empty()) return {};
  ContractedDag dag(order);
  for (const int node : order) {
    for (const Fanin& fanin : (*fanins)[node]) dag.AddEdge(fanin.node, node);
  }
  Pairs joined;
  for (const auto& [bias, filter] : candidates) {
    if (dag.Reaches(bias, filter) || dag.Reaches(filter, bias)) continue;
    joined.emplace_back(bias, filter);
    const std::vector<Fanin> of_bias = (*fanins)[bias];
    const std::vector<Fanin> of_filter = (*fanins)[filter];
    const auto add = [&](const std::vector<Fanin>& added, int to) {
      for (const Fanin& fanin : added) {
        if (fanin.port == kPostFusion) continue;  // each becomes one op with one other
        (*fanins)[to].push_back({fanin.node, kPostFusion});
        dag.AddEdge(fanin.node, to);
      }
    };
    add(of_filter, bias);
    add(of_bias, filter);
  }
  return joined;
}

}  // namespace tf_libra
