#include "passes/backward_order.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

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

// Adds control edges to a list, where they may be.
class Edges {
 public:
  explicit Edges(const IndexedGraph& graph) : graph_(graph) {}

  void Add(const std::vector<int>& from, int to) {
    // A control edge into one of these would belong to another frame than what it feeds.
    if (tensorflow::grappler::ModifiesFrameInfo(graph_.def->node(to))) return;
    for (const int node : from) {
      if (graph_.contexts[node] == graph_.contexts[to]) edges_.emplace_back(node, to);
    }
  }

  const std::vector<std::pair<int, int>>& edges() const { return edges_; }

 private:
  const IndexedGraph& graph_;
  std::vector<std::pair<int, int>> edges_;
};

}  // namespace

int KeepBackwardOrder(const OrderedStep& step, tensorflow::GraphDef* graph) {
  std::string reason;
  const std::optional<IndexedGraph> indexed = IndexGraph(*graph, &reason);
  if (!indexed) return 0;
  const std::vector<std::vector<Fanin>>& fanins = indexed->fanins;

  Edges added(*indexed);
  std::vector<int> layers(graph->node_size(), kNoLayer);
  std::vector<int> earlier;  // producers that what comes next waits for
  int layer = 0;
  for (const std::string& name : step.producers) {
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
        if (is_first && !fanins[node].empty()) added.Add(earlier, node);
      }
      earlier.clear();
    }
    earlier.push_back(producer);
    ++layer;
  }

  std::vector<bool> is_all_reduce(graph->node_size(), false);
  for (const std::string& name : step.all_reduces) {
    const auto found = indexed->index.find(name);
    if (found != indexed->index.end()) is_all_reduce[found->second] = true;
  }
  for (int node = 0; node < graph->node_size(); ++node) {
    // With a layer, a gradient depends on it. And all-reduces are ordered already.
    if (layers[node] != kNoLayer || is_all_reduce[node]) continue;
    const bool reads_reduced = std::any_of(
        fanins[node].begin(), fanins[node].end(),
        [&](const Fanin& fanin) { return fanin.port >= 0 && is_all_reduce[fanin.node]; });
    if (reads_reduced) added.Add(earlier, node);
  }

  for (const auto& [from, to] : added.edges()) {
    const std::string input = absl::StrCat("^", graph->node(from).name());
    auto* inputs = graph->mutable_node(to)->mutable_input();
    if (std::find(inputs->begin(), inputs->end(), input) == inputs->end()) *inputs->Add() = input;
  }
  return static_cast<int>(added.edges().size());
}

}  // namespace tf_libra
