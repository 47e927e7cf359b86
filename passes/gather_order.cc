#include "passes/gather_order.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_libra {

using tensorflow::GraphDef;
using tensorflow::NodeDef;

std::unordered_map<int, int> FindAssignments(const OwnedUpdates& updates,
                                             const std::unordered_map<int, int64_t>& parts,
                                             const GraphDef& graph,
                                             const std::vector<int>& position,
                                             std::vector<ShardedGroup>* groups) {
  const auto is_assign = [&](int node) { return AssignMode(graph.node(node).op()) != nullptr; };
  std::map<int, std::vector<int>> reads, assigns;  // of owned parts, by the node of the handle
  for (const auto& [node, size] : parts) {
    if (graph.node(node).op() == "ReadVariableOp") reads[updates.HandleOf(node)].push_back(node);
    if (is_assign(node)) assigns[updates.HandleOf(node)].push_back(node);
  }
  std::unordered_map<int, size_t> by_gradient;
  for (size_t i = 0; i < groups->size(); ++i) {
    std::vector<int> reached = {(*groups)[i].root};
    std::unordered_set<int> seen(reached.begin(), reached.end());
    for (size_t at = 0; at < reached.size(); ++at) {
      const int node = reached[at];
      for (const Use& use : updates.uses()[node]) {
        if (use.port < 0 || parts.count(use.node) == 0) continue;
        if (seen.insert(use.node).second) reached.push_back(use.node);
      }
      if (!is_assign(node)) continue;
      by_gradient[node] = i;  // of the last copy on whose gradient it depends
      for (const int read : reads[updates.HandleOf(node)]) {
        if (position[read] > position[node] && seen.insert(read).second) reached.push_back(read);
      }
    }
  }
  std::unordered_map<int, int> copies;
  for (const auto& [handle, nodes] : assigns) {
    for (const int node : nodes) {
      size_t group = groups->size() - 1;
      const auto own = by_gradient.find(node);
      if (own != by_gradient.end()) {
        group = own->second;
      } else {
        int first = -1;
        for (const int other : nodes) {
          const auto found = by_gradient.find(other);
          if (found == by_gradient.end() || position[other] < position[node]) continue;
          if (first >= 0 && position[first] < position[other]) continue;
          first = other;
          group = found->second;
        }
      }
      (*groups)[group].assigns.push_back(node);
      copies.emplace(node, (*groups)[group].reported->copy);
    }
  }
  for (ShardedGroup& group : *groups) std::sort(group.assigns.begin(), group.assigns.end());
  return copies;
}

bool ReducesByCopy(const GraphReport& report, const GraphDef& graph,
                   std::vector<std::vector<std::string>>* reduces) {
  std::map<std::string, int> copies;
  int last = 0;
  for (const ReportedGroup& group : report.groups) {
    copies.emplace(group.node, group.copy);
    last = std::max(last, group.copy);
  }
  reduces->resize(last + 1);
  for (const NodeDef& node : graph.node()) {
    if (node.op() != "LibraAllReduce") continue;
    const auto found = copies.find(node.name());
    if (found == copies.end() && last > 0) return false;
    (*reduces)[found == copies.end() ? 0 : found->second].push_back(node.name());
  }
  return true;
}

}  // namespace tf_libra
