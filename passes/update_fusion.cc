#include "passes/update_fusion.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/update_program.h"
#include "passes/indexed_graph.h"
#include "passes/shard_writer.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_libra {
namespace {

using tensorflow::AddNodeAttr;
using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::TensorId;

// Their results take a block of memory each, on every thread.
constexpr size_t kMostOps = 64;
constexpr char kRead[] = "LibraReadOwned";
constexpr char kAssign[] = "LibraAssignOwned";

// The operations that compute what TensorFlow's ops do, to the bit.
std::optional<UpdateOp> OperationOf(const NodeDef& node) {
  static const auto* const kOperations = new std::unordered_map<std::string, UpdateOp>{
      {"Add", UpdateOp::kAdd},      {"AddV2", UpdateOp::kAdd},    {"AddN", UpdateOp::kAdd},
      {"Sub", UpdateOp::kSubtract}, {"Mul", UpdateOp::kMultiply}, {"RealDiv", UpdateOp::kDivide},
      {"Div", UpdateOp::kDivide},   {"Neg", UpdateOp::kNegate},   {"Square", UpdateOp::kSquare},
      {"Sqrt", UpdateOp::kSqrt},    {kRead, UpdateOp::kRead},
  };
  if (node.op() == kAssign) {
    const std::string& mode = node.attr().at("mode").s();
    return mode == "assign" ? UpdateOp::kAssign
           : mode == "add"  ? UpdateOp::kAssignAdd
                            : UpdateOp::kAssignSubtract;
  }
  const auto found = kOperations->find(node.op());
  if (found == kOperations->end()) return std::nullopt;
  return found->second;
}

bool HasHandle(const NodeDef& node) { return node.op() == kRead || node.op() == kAssign; }

bool Forwards(const std::string& op) {
  return op == "Identity" || op == "Snapshot" || op == "StopGradient" || op == "PreventGradient";
}

bool IsFloat(const NodeDef& node) {
  for (const char* name : {"T", "dtype"}) {
    const auto found = node.attr().find(name);
    if (found != node.attr().end()) return found->second.type() == tensorflow::DT_FLOAT;
  }
  return false;
}

std::vector<TensorId> DataInputs(const NodeDef& node) {
  std::vector<TensorId> inputs;
  for (const std::string& input : node.input()) {
    const TensorId id = tensorflow::ParseTensorName(input);
    if (id.index() >= 0) inputs.push_back(id);
  }
  return inputs;
}

bool CanBeFused(const NodeDef& node, const NodesToKeep& keep) {
  if (!IsFloat(node) || absl::StrContains(node.device(), "GPU")) return false;
  if (keep.fetched.count(node.name()) > 0 || keep.fed.count(node.name()) > 0) return false;
  // TensorFlow adds more than two tensors in an order that depends on whose memory it may use.
  if (node.op() == "AddN") return DataInputs(node).size() == 2;
  return Forwards(node.op()) || OperationOf(node).has_value();
}

// Sets of nodes, joined pair by pair.
class Sets {
 public:
  void Add(int node) { parents_[node] = node; }
  bool Has(int node) const { return parents_.count(node) > 0; }
  void Join(int first, int second) { parents_[RootOf(first)] = RootOf(second); }
  int RootOf(int node) {
    while (parents_.at(node) != node) node = parents_[node] = parents_.at(parents_.at(node));
    return node;
  }

 private:
  std::unordered_map<int, int> parents_;
};

// Finds updates, each with its nodes in topological order.
class UpdateFinder {
 public:
  UpdateFinder(const ShardedNodes& sharded, const NodesToKeep& keep, const IndexedGraph& graph)
      : graph_(graph), consumers_(graph.order.size()), position_(graph.order.size()) {
    for (size_t i = 0; i < graph.order.size(); ++i) position_[graph.order[i]] = i;
    for (size_t node = 0; node < graph.fanins.size(); ++node) {
      for (const Fanin& from : graph.fanins[node]) consumers_[from.node].push_back(node);
    }
    Sets by_data;
    for (const int node : sharded.parts) {
      if (CanBeFused(Def(node), keep)) by_data.Add(node);
    }
    std::set<int> read_outside;
    for (int node = 0; node < graph.def->node_size(); ++node) {
      for (const TensorId& id : DataInputs(Def(node))) {
        const int from = graph.index.at(id.node());
        if (!by_data.Has(from)) continue;
        if (by_data.Has(node)) {
          by_data.Join(from, node);
        } else {
          read_outside.insert(from);
        }
      }
    }
    std::set<int> excluded;
    for (const int node : read_outside) excluded.insert(by_data.RootOf(node));
    std::map<int, std::vector<int>> pieces, wholes;  // connected by data, and by variables, too
    std::unordered_map<int, int> copies;             // by piece
    for (const int node : graph.order) {
      if (!by_data.Has(node) || excluded.count(by_data.RootOf(node)) > 0) continue;
      pieces[by_data.RootOf(node)].push_back(node);
      if (Def(node).op() == kAssign) copies[by_data.RootOf(node)] = sharded.copies.at(node);
    }
    Sets by_variable = by_data;
    std::map<std::pair<int, std::string>, int> users;  // of a variable, in one copy
    for (const auto& [root, nodes] : pieces) {
      if (copies.count(root) == 0) continue;
      for (const int node : nodes) {
        if (!HasHandle(Def(node))) continue;
        const auto key = std::make_pair(copies.at(root), Def(node).input(0));
        by_variable.Join(node, users.emplace(key, node).first->second);
      }
    }
    for (const auto& [root, nodes] : pieces) {
      for (const int node : nodes) wholes[by_variable.RootOf(node)].push_back(node);
    }
    for (auto& [root, nodes] : wholes) {
      std::sort(nodes.begin(), nodes.end(),
                [&](int first, int second) { return position_[first] < position_[second]; });
      if (CanBeOne(nodes)) {
        found_.push_back(nodes);
        continue;
      }
      std::set<int> roots;
      for (const int node : nodes) roots.insert(by_data.RootOf(node));
      for (const int piece : roots) {
        if (CanBeOne(pieces.at(piece))) found_.push_back(pieces.at(piece));
      }
    }
  }

  const std::vector<std::vector<int>>& found() const { return found_; }

 private:
  const NodeDef& Def(int node) const { return graph_.def->node(node); }

  bool CanBeOne(const std::vector<int>& nodes) const {
    if (nodes.size() > kMostOps) return false;
    bool assigns = false;
    for (const int node : nodes) {
      assigns = assigns || Def(node).op() == kAssign;
      if (Def(node).device() != Def(nodes[0]).device()) return false;
      // In a branch that is not taken, none of them runs.
      if (graph_.contexts[node] != graph_.contexts[nodes[0]]) return false;
    }
    return assigns && !WaitsForItself(nodes);
  }

  // Returns whether a node waits for another one by way of what is not among them.
  bool WaitsForItself(const std::vector<int>& nodes) const {
    const std::set<int> members(nodes.begin(), nodes.end());
    std::vector<int> reached;
    std::set<int> seen;
    const auto reach = [&](int from) {
      for (const int node : consumers_[from]) {
        if (position_[node] < position_[nodes.back()] && seen.insert(node).second) {
          reached.push_back(node);
        }
      }
    };
    for (const int node : nodes) reach(node);
    const auto is_member = [&](int node) { return members.count(node) > 0; };
    for (size_t i = 0; i < reached.size(); ++i) {
      if (is_member(reached[i])) continue;
      reach(reached[i]);
      const auto& after = consumers_[reached[i]];
      if (std::any_of(after.begin(), after.end(), is_member)) return true;
    }
    return false;
  }

  const IndexedGraph& graph_;
  std::vector<std::vector<int>> consumers_;
  std::vector<int> position_;
  std::vector<std::vector<int>> found_;
};

std::string InputOf(const TensorId& id) {
  const std::string node(id.node());
  return id.index() == 0 ? node : absl::StrCat(node, ":", id.index());
}

// Numbers inputs in the order in which they appear.
int NumberOf(const std::string& input, std::vector<std::string>* inputs) {
  const auto found = std::find(inputs->begin(), inputs->end(), input);
  const int number = static_cast<int>(found - inputs->begin());
  if (found == inputs->end()) inputs->push_back(input);
  return number;
}

NodeDef WriteUpdate(const std::vector<int>& nodes, const std::string& name, const GraphDef& graph) {
  std::unordered_set<std::string> members;
  for (const int node : nodes) members.insert(graph.node(node).name());
  std::vector<std::string> handles, values;
  std::vector<bool> is_slot;
  for (const int node : nodes) {
    const NodeDef& def = graph.node(node);
    const std::vector<TensorId> inputs = DataInputs(def);
    for (size_t i = HasHandle(def) ? 1 : 0; i < inputs.size(); ++i) {
      if (members.count(std::string(inputs[i].node())) == 0) {
        NumberOf(InputOf(inputs[i]), &values);
      }
    }
  }
  std::unordered_map<std::string, int> results;  // by node
  std::vector<int> program;
  const auto value_of = [&](const TensorId& id) {
    const auto found = results.find(std::string(id.node()));
    return found != results.end() ? found->second : NumberOf(InputOf(id), &values);
  };
  for (const int node : nodes) {
    const NodeDef& def = graph.node(node);
    const std::vector<TensorId> inputs = DataInputs(def);
    if (Forwards(def.op())) {
      results[def.name()] = value_of(inputs[0]);
      continue;
    }
    results[def.name()] = static_cast<int>(values.size() + program.size() / 3);
    int first = 0, second = 0;
    if (HasHandle(def)) {
      first = NumberOf(InputOf(inputs[0]), &handles);
      if (first == static_cast<int>(is_slot.size())) {
        is_slot.push_back(def.op() == kRead || def.attr().at("is_slot").b());
      }
    } else {
      first = value_of(inputs[0]);
    }
    if (inputs.size() > 1) second = value_of(inputs[1]);
    program.insert(program.end(), {static_cast<int>(*OperationOf(def)), first, second});
  }
  NodeDef update;
  update.set_name(name);
  update.set_op("LibraUpdateOwned");
  update.set_device(graph.node(nodes[0]).device());
  for (const std::string& handle : handles) update.add_input(handle);
  for (const std::string& value : values) update.add_input(value);
  for (const int node : nodes) {
    for (const std::string& input : graph.node(node).input()) {
      const TensorId id = tensorflow::ParseTensorName(input);
      if (id.index() < 0 && members.count(std::string(id.node())) == 0) {
        AddControl(std::string(id.node()), &update);
      }
    }
  }
  AddNodeAttr("N", static_cast<int>(handles.size()), &update);
  AddNodeAttr("M", static_cast<int>(values.size()), &update);
  AddNodeAttr("is_slot", is_slot, &update);
  AddNodeAttr("program", program, &update);
  return update;
}

}  // namespace

int FuseUpdates(const ShardedNodes& sharded, const NodesToKeep& keep, GraphDef* graph) {
  std::string reason;
  const auto indexed = IndexGraph(*graph, &reason);
  if (!indexed.has_value()) return 0;
  const UpdateFinder updates(sharded, keep, *indexed);
  if (updates.found().empty()) return 0;
  GraphDef fused = *graph;
  for (const std::vector<int>& nodes : updates.found()) {
    const std::string& last = graph->node(nodes.back()).name();
    std::string name = absl::StrCat(last, "_update");
    for (int i = 1; indexed->index.count(name) > 0; ++i) name = absl::StrCat(last, "_update_", i);
    *fused.add_node() = WriteUpdate(nodes, name, *graph);
    for (const int node : nodes) {
      NodeDef* const def = fused.mutable_node(node);
      def->set_op("NoOp");
      def->clear_attr();
      def->clear_input();
      AddControl(name, def);
    }
  }
  // Two of them may wait for each other.
  if (!IsLive(fused, &reason)) {
    VLOG(1) << "updates stay ops of their own: " << reason;
    return 0;
  }
  *graph = std::move(fused);
  return static_cast<int>(updates.found().size());
}

}  // namespace tf_libra
