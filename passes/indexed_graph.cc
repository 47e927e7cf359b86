#include "passes/indexed_graph.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "passes/loop_frames.h"
#include "passes/post_grappler_fusions.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/grappler/op_types.h"

namespace tf_libra {
namespace {

using tensorflow::GraphDef;
using tensorflow::TensorId;

// Names the nodes of one cycle, given what is not on any.
std::string DescribeCycle(const GraphDef& def, const std::vector<std::vector<Fanin>>& fanins,
                          const std::vector<int>& order) {
  std::vector<bool> is_free(fanins.size(), false);
  for (const int node : order) is_free[node] = true;
  // Every remaining node waits for a remaining node, so following fanins finds a cycle.
  int node = static_cast<int>(std::find(is_free.begin(), is_free.end(), false) - is_free.begin());
  std::vector<int> way;
  std::vector<bool> seen(fanins.size(), false);
  while (!seen[node]) {
    seen[node] = true;
    way.push_back(node);
    for (const Fanin& fanin : fanins[node]) {
      if (!is_free[fanin.node]) node = fanin.node;
    }
  }
  way.erase(way.begin(), std::find(way.begin(), way.end(), node));
  constexpr size_t kMaxNames = 6;
  std::string text = absl::StrCat(way.size(), " nodes wait for each other:");
  for (size_t i = 0; i < way.size() && i < kMaxNames; ++i) {
    absl::StrAppend(&text, i == 0 ? " '" : ", '", def.node(way[i]).name(), "'");
  }
  return way.size() > kMaxNames ? absl::StrCat(text, ", ...") : text;
}

}  // namespace

std::vector<int> TopologicalOrder(const std::vector<std::vector<Fanin>>& fanins) {
  std::vector<std::vector<int>> fanouts(fanins.size());
  std::vector<size_t> waits_for(fanins.size());
  std::vector<int> order;
  order.reserve(fanins.size());
  for (size_t node = 0; node < fanins.size(); ++node) {
    waits_for[node] = fanins[node].size();
    if (waits_for[node] == 0) order.push_back(static_cast<int>(node));
    for (const Fanin& fanin : fanins[node]) fanouts[fanin.node].push_back(static_cast<int>(node));
  }
  for (size_t done = 0; done < order.size(); ++done) {
    for (const int next : fanouts[order[done]]) {
      if (--waits_for[next] == 0) order.push_back(next);
    }
  }
  return order;
}

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
  const auto sort = [&] {
    graph.order = TopologicalOrder(graph.fanins);
    if (graph.order.size() == graph.fanins.size()) return true;
    *reason = DescribeCycle(def, graph.fanins, graph.order);
    return false;
  };
  if (!sort()) return std::nullopt;
  if (std::any_of(def.node().begin(), def.node().end(), tensorflow::grappler::IsEnter)) {
    CloseLoops(def, graph.order, &graph.fanins);
    if (!sort()) return std::nullopt;
  }
  ControlFlowContexts found = FindControlFlowContexts(def, graph.fanins, graph.order);
  graph.contexts = std::move(found.of_outputs);
  graph.input_contexts = std::move(found.of_inputs);
  graph.conditions = std::move(found.conditions);
  graph.post_fusion_pairs = AddPostFusionEdges(def, graph.contexts, graph.order, &graph.fanins);
  // No pair has a path between its nodes, so there is an order.
  if (!graph.post_fusion_pairs.empty()) graph.order = TopologicalOrder(graph.fanins);
  return graph;
}

bool IsLive(const GraphDef& graph, std::string* why) { return IndexGraph(graph, why).has_value(); }

}  // namespace tf_libra
