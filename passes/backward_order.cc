#include "passes/backward_order.h"

#include <algorithm>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "passes/control_flow_contexts.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/grappler/op_types.h"
#include "tensorflow/core/grappler/utils/topological_sort.h"

namespace tf_libra {
namespace {

constexpr int kNoLayer = -1;

// All edges into every node, data and control, without the back edges of loops.
std::vector<std::vector<Fanin>> ReadFanins(
    const tensorflow::GraphDef& graph, const std::unordered_map<absl::string_view, int>& index) {
  std::vector<std::vector<Fanin>> fanins(graph.node_size());
  for (int i = 0; i < graph.node_size(); ++i) {
    for (const std::string& input : graph.node(i).input()) {
      const tensorflow::TensorId id = tensorflow::ParseTensorName(input);
      const int from = index.at(id.node());
      const bool back_edge = tensorflow::grappler::IsMerge(graph.node(i)) &&
                             tensorflow::grappler::IsNextIteration(graph.node(from));
      if (!back_edge) fanins[i].push_back({from, id.index()});
    }
  }
  return fanins;
}

// Gives every node that leads to `producer`, itself included, the layer `layer` if it has none
// yet, and returns those nodes.
std::vector<int> ClaimLayer(const std::vector<std::vector<Fanin>>& fanins, int producer, int layer,
                            std::vector<int>* layers) {
  std::vector<int> claimed;
  std::vector<int> pending = {producer};
  while (!pending.empty()) {
    const int node = pending.back();
    pending.pop_back();
    if ((*layers)[node] != kNoLayer) continue;
    (*layers)[node] = layer;
    claimed.push_back(node);
    for (const Fanin& fanin : fanins[node]) pending.push_back(fanin.node);
  }
  return claimed;
}

}  // namespace

int KeepBackwardOrder(const std::vector<std::string>& producers, tensorflow::GraphDef* graph) {
  std::vector<const tensorflow::NodeDef*> sorted;
  if (!tensorflow::grappler::ComputeTopologicalOrder(*graph, &sorted).ok()) return 0;
  std::unordered_map<absl::string_view, int> index;
  for (int i = 0; i < graph->node_size(); ++i) index.emplace(graph->node(i).name(), i);
  const std::vector<std::vector<Fanin>> fanins = ReadFanins(*graph, index);
  std::vector<int> order;
  for (const tensorflow::NodeDef* node : sorted) order.push_back(index.at(node->name()));
  const std::vector<int> contexts = ControlFlowContexts(*graph, fanins, order);

  std::vector<int> layers(graph->node_size(), kNoLayer);
  std::vector<int> earlier;                // producers that what comes next waits for
  std::vector<std::pair<int, int>> added;  // control edges, from and to
  int layer = 0;
  for (const std::string& name : producers) {
    const auto found = index.find(name);
    if (found == index.end()) continue;
    const int producer = found->second;
    const std::vector<int> claimed = ClaimLayer(fanins, producer, layer, &layers);
    if (claimed.size() > 1 && !earlier.empty()) {
      for (const int node : claimed) {
        const bool is_first =
            std::all_of(fanins[node].begin(), fanins[node].end(),
                        [&](const Fanin& fanin) { return layers[fanin.node] < layer; });
        // A node without inputs is a constant or the like: it would hold nothing up.
        if (!is_first || fanins[node].empty()) continue;
        for (const int from : earlier) {
          if (contexts[from] == contexts[node]) added.emplace_back(from, node);
        }
      }
      earlier.clear();
    }
    earlier.push_back(producer);
    ++layer;
  }
  for (const auto& [from, to] : added) {
    const std::string input = absl::StrCat("^", graph->node(from).name());
    auto* inputs = graph->mutable_node(to)->mutable_input();
    if (std::find(inputs->begin(), inputs->end(), input) == inputs->end()) *inputs->Add() = input;
  }
  return static_cast<int>(added.size());
}

}  // namespace tf_libra
