#include "passes/backward_order.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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
      if (graph_.contexts[node] == graph_.contexts[to]) edges_.push_back({node, to});
    }
  }

  std::vector<ControlEdge> Take() { return std::move(edges_); }

 private:
  const IndexedGraph& graph_;
  std::vector<ControlEdge> edges_;
};

std::vector<int> Numbers(const std::vector<std::string>& names, const IndexedGraph& graph) {
  std::vector<int> numbers;
  for (const std::string& name : names) {
    const auto found = graph.index.find(name);
    if (found != graph.index.end()) numbers.push_back(found->second);
  }
  return numbers;
}

}  // namespace

std::vector<ControlEdge> BackwardOrderEdges(const std::vector<OrderedStep>& steps,
                                            const IndexedGraph& graph) {
  const int num_nodes = graph.def->node_size();
  std::vector<bool> is_all_reduce(num_nodes, false);
  for (const OrderedStep& step : steps) {
    for (const int node : Numbers(step.all_reduces, graph)) is_all_reduce[node] = true;
  }
  std::vector<std::vector<int>> readers(num_nodes);  // of the data that an all-reduce hands out
  for (int node = 0; node < num_nodes; ++node) {
    for (const Fanin& fanin : graph.fanins[node]) {
      if (fanin.port >= 0 && is_all_reduce[fanin.node]) readers[fanin.node].push_back(node);
    }
  }

  Edges added(graph);
  std::vector<int> layers(num_nodes, kNoLayer);
  int layer = 0;
  for (const OrderedStep& step : steps) {
    std::vector<int> earlier;  // producers that what comes next waits for
    for (const int producer : Numbers(step.producers, graph)) {
      const std::vector<int> claimed = ClaimLayer(graph.fanins, producer, layer, &layers);
      if (claimed.size() > 1 && !earlier.empty()) {
        for (const int node : claimed) {
          const bool is_first =
              std::all_of(graph.fanins[node].begin(), graph.fanins[node].end(),
                          [&](const Fanin& fanin) { return layers[fanin.node] < layer; });
          // A node without inputs is a constant or the like: it would hold nothing up.
          if (is_first && !graph.fanins[node].empty()) added.Add(earlier, node);
        }
        earlier.clear();
      }
      earlier.push_back(producer);
      ++layer;
    }
    std::set<int> waiting;
    for (const int all_reduce : Numbers(step.all_reduces, graph)) {
      for (const int node : readers[all_reduce]) {
        // With a layer, a gradient depends on it. And all-reduces are ordered already.
        if (layers[node] == kNoLayer && !is_all_reduce[node]) waiting.insert(node);
      }
    }
    for (const int node : waiting) added.Add(earlier, node);
  }
  return added.Take();
}

bool CloseCycle(const std::vector<ControlEdge>& edges, const IndexedGraph& graph) {
  std::vector<std::vector<int>> fanouts(graph.fanins.size());
  std::vector<int> waits_for(graph.fanins.size(), 0);
  const auto add = [&](int from, int to) {
    fanouts[from].push_back(to);
    ++waits_for[to];
  };
  for (size_t node = 0; node < graph.fanins.size(); ++node) {
    for (const Fanin& fanin : graph.fanins[node]) add(fanin.node, static_cast<int>(node));
  }
  for (const ControlEdge& edge : edges) add(edge.from, edge.to);
  std::vector<int> ready;
  for (size_t node = 0; node < waits_for.size(); ++node) {
    if (waits_for[node] == 0) ready.push_back(static_cast<int>(node));
  }
  size_t done = 0;
  for (; !ready.empty(); ++done) {
    const int node = ready.back();
    ready.pop_back();
    for (const int next : fanouts[node]) {
      if (--waits_for[next] == 0) ready.push_back(next);
    }
  }
  return done < waits_for.size();
}

void AddControlEdges(const std::vector<ControlEdge>& edges, tensorflow::GraphDef* def) {
  std::map<int, std::vector<int>> fanins;
  for (const ControlEdge& edge : edges) fanins[edge.to].push_back(edge.from);
  for (const auto& [to, froms] : fanins) {
    auto* inputs = def->mutable_node(to)->mutable_input();
    std::unordered_set<std::string> seen(inputs->begin(), inputs->end());
    for (const int from : froms) {
      const std::string input = absl::StrCat("^", def->node(from).name());
      if (seen.insert(input).second) *inputs->Add() = input;
    }
  }
}

}  // namespace tf_libra
