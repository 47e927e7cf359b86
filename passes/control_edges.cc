#include "passes/control_edges.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_libra {

using tensorflow::NodeDef;

bool CloseCycle(const std::vector<ControlEdge>& edges, const IndexedGraph& graph) {
  std::vector<std::vector<Fanin>> fanins = graph.fanins;
  for (const ControlEdge& edge : edges) {
    const int node = static_cast<int>(fanins.size());
    fanins.emplace_back();
    for (const int before : edge.before) fanins.back().push_back({before, -1});
    for (const int after : edge.after) fanins[after].push_back({node, -1});
  }
  return TopologicalOrder(fanins).size() < fanins.size();
}

void WriteControlEdges(const std::vector<ControlEdge>& edges, const IndexedGraph& graph,
                       const std::string& prefix, tensorflow::GraphDef* def) {
  std::unordered_map<int, std::vector<std::string>> inputs;
  int num_joins = 0;
  for (const ControlEdge& edge : edges) {
    std::vector<std::string> before;
    for (const int node : edge.before) {
      before.push_back(absl::StrCat("^", graph.def->node(node).name()));
    }
    if (before.size() * edge.after.size() > before.size() + edge.after.size()) {
      std::string name;
      do {
        name = absl::StrCat(prefix, num_joins++);
      } while (graph.index.count(name) > 0);
      NodeDef* join = def->add_node();
      join->set_name(name);
      join->set_op("NoOp");
      join->set_device(graph.def->node(edge.after[0]).device());
      for (std::string& input : before) *join->add_input() = std::move(input);
      before = {absl::StrCat("^", name)};
    }
    for (const int node : edge.after) {
      inputs[node].insert(inputs[node].end(), before.begin(), before.end());
    }
  }
  for (auto& [node, added] : inputs) {
    auto* node_inputs = def->mutable_node(node)->mutable_input();
    std::unordered_set<std::string> seen(node_inputs->begin(), node_inputs->end());
    for (std::string& input : added) {
      if (seen.insert(input).second) *node_inputs->Add() = std::move(input);
    }
  }
}

}  // namespace tf_libra
