#include "passes/update_sharding.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "passes/branches.h"
#include "passes/derivations.h"
#include "passes/gather_order.h"
#include "passes/indexed_graph.h"
#include "passes/shard_writer.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace tf_libra {
namespace {

using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::TensorId;

// Lets what reads an IdentityN read its inputs instead. A NoOp remains for control edges. Inlined
// functions of optimizers pass all gradients through one IdentityN.
void BypassIdentityN(const NodesToKeep& keep, GraphDef* graph) {
  std::unordered_map<std::string, NodeDef*> bypassed;
  for (NodeDef& node : *graph->mutable_node()) {
    const bool is_kept = keep.fetched.count(node.name()) > 0 || keep.fed.count(node.name()) > 0;
    if (node.op() == "IdentityN" && !is_kept) bypassed.emplace(node.name(), &node);
  }
  for (NodeDef& node : *graph->mutable_node()) {
    for (int i = 0; i < node.input_size(); ++i) {
      TensorId id = tensorflow::ParseTensorName(node.input(i));
      auto found = bypassed.find(std::string(id.node()));
      while (id.index() >= 0 && found != bypassed.end()) {
        for (const std::string& input : found->second->input()) {
          const TensorId before = tensorflow::ParseTensorName(input);
          if (before.index() < 0) AddControl(std::string(before.node()), &node);
        }
        node.set_input(i, found->second->input(id.index()));
        id = tensorflow::ParseTensorName(node.input(i));
        found = bypassed.find(std::string(id.node()));
      }
    }
  }
  for (const auto& [name, node] : bypassed) {
    const NodeDef before = *node;
    node->set_op("NoOp");
    node->clear_attr();
    node->clear_input();
    for (const std::string& input : before.input()) {
      AddControl(std::string(tensorflow::ParseTensorName(input).node()), node);
    }
  }
}

// Splits sums, in their order, into exchanges: one adds those that depend on sums of earlier ones.
std::vector<std::vector<NamedSum>> ByExchange(const IndexedGraph& graph,
                                              const std::vector<NamedSum>& sums) {
  std::vector<int> is_sum(graph.fanins.size(), 0), num_before(graph.fanins.size(), 0);
  for (const NamedSum& sum : sums) is_sum[sum.node] = 1;
  for (const int node : graph.order) {
    for (const Fanin& fanin : graph.fanins[node]) {
      num_before[node] = std::max(num_before[node], num_before[fanin.node] + is_sum[fanin.node]);
    }
  }
  std::map<int, std::vector<NamedSum>> exchanges;
  for (const NamedSum& sum : sums) exchanges[num_before[sum.node]].push_back(sum);
  std::vector<std::vector<NamedSum>> in_order;
  for (auto& exchange : exchanges) in_order.push_back(std::move(exchange.second));
  return in_order;
}

// Returns the sums that depend on all-reduces of each copy of the step, and on none of a later one.
std::vector<std::set<int>> ByCopy(const IndexedGraph& graph, const std::set<int>& sums,
                                  const std::vector<std::vector<std::string>>& reduces) {
  std::vector<int> copies(graph.fanins.size(), 0);
  for (size_t copy = 0; copy < reduces.size(); ++copy) {
    for (const std::string& name : reduces[copy]) copies[graph.index.at(name)] = copy;
  }
  for (const int node : graph.order) {
    for (const Fanin& fanin : graph.fanins[node]) {
      copies[node] = std::max(copies[node], copies[fanin.node]);
    }
  }
  std::vector<std::set<int>> found(reduces.size());
  for (const int sum : sums) found[copies[sum]].insert(sum);
  return found;
}

}  // namespace

ShardedNodes ShardUpdates(const UpdateSharding& sharding, const std::vector<GatherGroup>& gathers,
                          const NodesToKeep& keep, GraphReport* report, GraphDef* graph) {
  GraphDef sharded = *graph;
  BypassIdentityN(keep, &sharded);
  OwnedUpdates updates(sharding, keep, &sharded);
  std::unordered_map<int, int64_t> parts;
  std::set<int> sums;
  std::vector<ShardedGroup> groups;
  for (ReportedGroup& group : report->groups) {
    group.whole = updates.Collect(group, parts);
    if (!group.whole.empty()) continue;
    groups.push_back({&group, updates.root(), {}});
    parts.insert(updates.parts().begin(), updates.parts().end());
    sums.insert(updates.sums().begin(), updates.sums().end());
  }
  if (groups.empty()) return {};
  const auto keep_whole = [&](const std::string& reason) {
    for (const ShardedGroup& group : groups) group.reported->whole = reason;
    return ShardedNodes();
  };
  std::string reason;
  const auto indexed = IndexGraph(sharded, &reason);
  if (!indexed.has_value()) return keep_whole(reason);
  std::vector<int> position(graph->node_size());
  for (size_t i = 0; i < indexed->order.size(); ++i) position[indexed->order[i]] = i;
  const auto copies = FindAssignments(updates, parts, sharded, position, &groups);
  std::vector<std::vector<std::string>> reduces;  // by copy
  if (!ReducesByCopy(*report, sharded, &reduces)) {
    return keep_whole("an all-reduce is not in the plan, and the graph holds several steps");
  }
  for (const std::vector<std::string>& of_copy : reduces) {
    for (const std::string& name : of_copy) {
      // What waits for an op in a branch that is not taken does not run.
      if (!IsUnconditional(*indexed, updates.index().at(name))) {
        return keep_whole("an all-reduce is conditional or in a loop");
      }
    }
  }
  // A gather waits for the ends of the branches that the handle of its variable is passed into.
  for (const auto& [assign, copy] : copies) {
    const auto found = BranchesOf(*indexed, assign);
    if (!found.has_value() || found->size() != updates.SwitchesOf(assign).size()) {
      return keep_whole(
          "an update is in a loop, a tf.switch_case or a branch without its variable");
    }
  }
  std::unordered_map<int, Branches> branches;
  for (const int sum : sums) {
    const auto found = BranchesOf(*indexed, sum);
    if (!found.has_value()) return keep_whole("a sum is in a loop or a tf.switch_case");
    branches.emplace(sum, *found);
  }
  const Derivations derivations(updates, parts, sums, groups, indexed->order, sharded);
  std::vector<std::vector<NamedSum>> named_sums(reduces.size());
  const std::vector<std::set<int>> sums_of = ByCopy(*indexed, sums, reduces);
  for (size_t copy = 0; copy < reduces.size(); ++copy) {
    if (!derivations.NameSums(sums_of[copy], &named_sums[copy], &reason)) return keep_whole(reason);
  }
  const auto variables = derivations.NameVariables(&groups);

  ShardWriter writer(updates, parts, &sharded);
  for (const ShardedGroup& group : groups) writer.WriteScatter(group.root);
  // Ranks have to agree on one order: the all-reduces of a copy, its sums, its gathers, and the
  // all-reduces of the next.
  std::vector<std::string> before;
  std::string last_gather;
  for (size_t copy = 0; copy < reduces.size(); ++copy) {
    for (const std::string& name : reduces[copy]) {
      NodeDef* const reduce = sharded.mutable_node(updates.index().at(name));
      for (const std::string& gather : before) reduce->add_input(ControlTo(gather));
    }
    std::vector<const ShardedGroup*> order;
    for (const ShardedGroup& group : groups) {
      if (reduces.size() == 1 || group.reported->copy == static_cast<int>(copy)) {
        order.push_back(&group);
      }
    }
    // The next forward pass reads first what is reduced last.
    const bool is_last = copy + 1 == reduces.size();
    const bool in_background = is_last && sharding.overlaps_calls;
    if (!is_last || in_background) std::reverse(order.begin(), order.end());
    std::vector<std::string> after = reduces[copy];
    for (const std::vector<NamedSum>& exchanged : ByExchange(*indexed, named_sums[copy])) {
      before = {writer.WriteSums(groups[0].root, exchanged, branches, after)};
      after = reduces[copy];
      after.push_back(before[0]);
    }
    std::vector<int> assigns;  // those of the copy
    for (const auto& [node, copy_of_node] : copies) {
      if (reduces.size() == 1 || copy_of_node == static_cast<int>(copy)) assigns.push_back(node);
    }
    std::sort(assigns.begin(), assigns.end());
    // What a step changes before its gradients have arrived belongs to no earlier step.
    for (const int node : assigns) {
      if (!last_gather.empty()) AddControl(last_gather, sharded.mutable_node(node));
    }
    last_gather.clear();
    for (const Gather& planned : GathersOf(order, gathers)) {
      for (std::string& gather : writer.WriteGathers(planned, variables, after, in_background)) {
        after = before = {gather};
        last_gather = gather;
      }
    }
    if (last_gather.empty()) continue;
    const auto is_slot = [&](int node) { return updates.IsSlot(updates.HandleOf(node)); };
    assigns.erase(
        std::remove_if(assigns.begin(), assigns.end(), [&](int node) { return !is_slot(node); }),
        assigns.end());
    writer.EndStep(last_gather, assigns);
  }
  writer.WriteParts();
  writer.Finish(copies);
  if (!IsLive(sharded, &reason)) {
    return keep_whole(absl::StrCat("updates at the owner would close a cycle: ", reason));
  }
  for (const ShardedGroup& group : groups) group.reported->is_sharded = true;
  report->exchanged = writer.exchanged();
  *graph = std::move(sharded);
  ShardedNodes nodes;
  for (const auto& [node, size] : parts) nodes.parts.push_back(node);
  nodes.copies = copies;
  return nodes;
}

}  // namespace tf_libra
