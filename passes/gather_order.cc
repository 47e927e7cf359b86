#include "passes/gather_order.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

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
  std::unordered_map<int, std::pair<size_t, int>> by_gradient;
  const auto follow = [&](size_t group, int tensor) {
    std::vector<int> reached;
    std::unordered_set<int> seen;
    const auto reach = [&](int node) {
      if (seen.insert(node).second) reached.push_back(node);
    };
    for (const Use& use : updates.uses()[(*groups)[group].root]) {
      if (use.port == tensor && parts.count(use.node) > 0) reach(use.node);
    }
    for (size_t at = 0; at < reached.size(); ++at) {
      const int node = reached[at];
      for (const Use& use : updates.uses()[node]) {
        if (use.port >= 0 && parts.count(use.node) > 0) reach(use.node);
      }
      if (!is_assign(node)) continue;
      by_gradient[node] = {group, tensor};  // the last copy on whose gradient it depends
      for (const int read : reads[updates.HandleOf(node)]) {
        if (position[read] > position[node]) reach(read);
      }
    }
  };
  for (size_t i = 0; i < groups->size(); ++i) {
    const int num_tensors = static_cast<int>((*groups)[i].reported->tensors.size());
    for (int tensor = 0; tensor < num_tensors; ++tensor) follow(i, tensor);
  }
  std::unordered_map<int, int> copies;
  for (const auto& [handle, nodes] : assigns) {
    for (const int node : nodes) {
      std::pair<size_t, int> group = {groups->size() - 1, 0};
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
      (*groups)[group.first].assigns.push_back({node, group.second});
      copies.emplace(node, (*groups)[group.first].reported->copy);
    }
  }
  for (ShardedGroup& group : *groups) {
    std::sort(group.assigns.begin(), group.assigns.end(),
              [](const OwnedAssign& one, const OwnedAssign& two) { return one.node < two.node; });
  }
  return copies;
}

std::vector<Gather> GathersOf(const std::vector<const ShardedGroup*>& groups,
                              const std::vector<GatherGroup>& planned) {
  std::unordered_map<std::string, size_t> gather_of;  // by tensor
  for (size_t i = 0; i < planned.size(); ++i) {
    for (const std::string& name : planned[i].tensor_names) gather_of.emplace(name, i);
  }
  std::vector<Gather> gathers(planned.empty() ? groups.size() : planned.size(), Gather{-1, {}});
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const OwnedAssign& assign : groups[i]->assigns) {
      const std::string& name = groups[i]->reported->tensors[assign.tensor].name;
      Gather& gather = gathers[planned.empty() ? i : gather_of.at(name)];
      if (gather.root < 0) gather.root = groups[i]->root;
      gather.assigns.push_back(assign.node);
    }
  }
  for (size_t i = 0; i < planned.size(); ++i) gathers[i].num_threads = planned[i].num_threads;
  gathers.erase(std::remove_if(gathers.begin(), gathers.end(),
                               [](const Gather& gather) { return gather.root < 0; }),
                gathers.end());
  return gathers;
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
