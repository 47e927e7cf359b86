#include "passes/backward_order.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "passes/indexed_graph.h"
#include "tensorflow/core/grappler/op_types.h"

namespace tf_libra {
namespace {

constexpr int kNoLayer = -1;

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
  std::string reason;
  const std::optional<IndexedGraph> indexed = IndexGraph(*graph, &reason);
  if (!indexed) return 0;
  const std::vector<std::vector<Fanin>>& fanins = indexed->fanins;

  std::vector<int> layers(graph->node_size(), kNoLayer);
  std::vector<int> earlier;                // producers that what comes next waits for
  std::vector<std::pair<int, int>> added;  // control edges, from and to
  int layer = 0;
  for (const std::string& name : producers) {
    const auto found = indexed->index.find(name);
    if (found == indexed->index.end()) continue;
    const int producer = found->second;
    const std::vector<int> claimed = ClaimLayer(fanins, producer, layer, &layers);
    if (claimed.size() > 1 && !earlier.empty()) {
      for (const int node : claimed) {
        const bool is_first =
            std::all_of(fanins[node].begin(), fanins[node].end(),
                        [&](const Fanin& fanin) { return layers[fanin.node] < layer; });
        // A node without inputs is a constant or the like: it would hold nothing up.
        if (!is_first || fanins[node].empty()) continue;
        // A control edge into one of these would belong to another frame than what it feeds.
        if (tensorflow::grappler::ModifiesFrameInfo(graph->node(node))) continue;
        for (const int from : earlier) {
          if (indexed->contexts[from] == indexed->contexts[node]) added.emplace_back(from, node);
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
