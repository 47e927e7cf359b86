#include "passes/update_sharding.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "passes/gather_order.h"
#include "passes/indexed_graph.h"
#include "passes/pending_all_reduces.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace tf_libra {
namespace {

using tensorflow::AddNodeAttr;
using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::TensorId;

constexpr char kShapes[] = "_output_shapes";

// Ops that output the handle that they take.
bool ForwardsHandle(const std::string& op) {
  return op == "Identity" || op == "Switch" || op == "RefSwitch" || op == "Merge" ||
         op == "RefMerge";
}

std::string ControlTo(const std::string& node) { return absl::StrCat("^", node); }

bool HasInput(const NodeDef& node, const std::string& input) {
  for (const std::string& other : node.input()) {
    if (other == input) return true;
  }
  return false;
}

void AddControl(const std::string& from, NodeDef* node) {
  if (!HasInput(*node, ControlTo(from))) node->add_input(ControlTo(from));
}

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

// Writes the graph in which the nodes of all sharded groups compute owned parts.
class ShardWriter {
 public:
  ShardWriter(const OwnedUpdates& updates, const std::unordered_map<int, int64_t>& parts,
              GraphDef* graph)
      : updates_(updates), parts_(parts), graph_(graph) {
    for (const NodeDef& node : graph->node()) names_.insert(node.name());
  }

  // Makes an all-reduce a reduce-scatter.
  void WriteScatter(int root) {
    roots_.insert(root);
    NodeDef* const reduce = graph_->mutable_node(root);
    reduce->mutable_attr()->erase(kShapes);
    AddNodeAttr("scatter", true, reduce);
  }

  void WriteParts() {
    for (const auto& [node, size] : parts_) {
      NodeDef* const def = graph_->mutable_node(node);
      def->mutable_attr()->erase(kShapes);
      if (def->op() == "ReadVariableOp") {
        const auto dtype = def->attr().at("dtype");
        def->clear_attr();
        def->set_op("LibraReadOwned");
        (*def->mutable_attr())["dtype"] = dtype;
        continue;
      }
      const bool is_assign = AssignMode(def->op()) != nullptr;
      if (IsReshape(def->op())) WriteIdentity(def);
      for (int slot = is_assign ? 1 : 0; slot < def->input_size(); ++slot) {
        TakePart(node, slot, size, def);
      }
      if (is_assign) WriteAssign(node, def);
    }
  }

  // Gathers the weights of one all-reduce after its `assigns`. Returns the names of the gathers.
  std::vector<std::string> WriteGathers(int root, const std::vector<int>& assigns,
                                        const std::vector<std::string>& after) {
    const NodeDef reduce = graph_->node(root);
    std::map<tensorflow::DataType, std::vector<int>> by_dtype;
    for (const int node : assigns) {
      const int handle = updates_.HandleOf(node);
      if (updates_.IsSlot(handle)) continue;
      by_dtype[graph_->node(node).attr().at("dtype").type()].push_back(node);
    }
    std::vector<std::string> gathers;
    for (auto& [dtype, nodes] : by_dtype) {
      const std::string name = NewName(absl::StrCat(reduce.name(), "_gather"));
      NodeDef gather;
      gather.set_name(name);
      gather.set_op("LibraGatherOwned");
      gather.set_device(reduce.device());
      std::vector<std::string> names;
      std::unordered_set<int> handles;
      for (const int node : nodes) {
        const int handle = updates_.HandleOf(node);
        if (!handles.insert(handle).second) continue;
        gather.add_input(graph_->node(handle).name());
        names.push_back(absl::StrCat("updated ", names.size(), " of ", reduce.name()));
      }
      AddNodeAttr("N", static_cast<int>(names.size()), &gather);
      AddNodeAttr("dtype", dtype, &gather);
      AddNodeAttr("names", names, &gather);
      for (const char* shared : {"num_threads", "first_lane", "plan", "function"}) {
        const auto found = reduce.attr().find(shared);
        if (found != reduce.attr().end()) (*gather.mutable_attr())[shared] = found->second;
      }
      for (const int node : nodes) {
        // Whatever waited for the assignment waits for the gather, except owned parts.
        const std::string old = graph_->node(node).name();
        const auto found = owned_names_.find(node);
        const std::string owned =
            found != owned_names_.end() ? found->second : NewName(absl::StrCat(old, "_owned"));
        owned_names_[node] = owned;
        gather.add_input(ControlTo(owned));
      }
      for (const std::string& earlier : after) gather.add_input(ControlTo(earlier));
      for (const std::string& earlier : gathers) gather.add_input(ControlTo(earlier));
      for (const int node : nodes) gathers_of_[node] = name;
      gathers.push_back(name);
      added_.push_back(std::move(gather));
    }
    return gathers;
  }

  // Renames assignments of weights, and adds what WriteGathers has made. `copies` has the copy of
  // the step that each assignment belongs to.
  void Finish(const std::unordered_map<int, int>& copies) {
    std::unordered_map<std::string, std::pair<std::string, int>> renamed;  // with the copy
    for (const auto& [node, owned] : owned_names_) {
      NodeDef* const assign = graph_->mutable_node(node);
      renamed.emplace(ControlTo(assign->name()), std::make_pair(ControlTo(owned), copies.at(node)));
      NodeDef whole;
      whole.set_name(assign->name());
      whole.set_op("NoOp");
      whole.set_device(assign->device());
      whole.add_input(ControlTo(owned));
      whole.add_input(ControlTo(gathers_of_.at(node)));
      assign->set_name(owned);
      added_.push_back(std::move(whole));
    }
    for (const auto& [node, size] : parts_) {
      const auto copy = copies.find(node);
      for (std::string& input : *graph_->mutable_node(node)->mutable_input()) {
        const auto found = renamed.find(input);
        if (found == renamed.end()) continue;
        // The next copy's assignment waits until the weight is whole.
        const auto& [owned, copy_of_input] = found->second;
        if (copy == copies.end() || copy->second == copy_of_input) input = owned;
      }
    }
    WaitForGathers(copies);
    for (NodeDef& node : added_) *graph_->add_node() = std::move(node);
  }

 private:
  std::string NewName(std::string name) {
    const std::string base = name;
    for (int i = 1; !names_.insert(name).second; ++i) name = absl::StrCat(base, "_", i);
    return name;
  }

  void WriteIdentity(NodeDef* def) {
    const auto type = def->attr().at("T");
    std::vector<std::string> inputs = {def->input(0)};
    for (int i = 1; i < def->input_size(); ++i) {
      const TensorId id = tensorflow::ParseTensorName(def->input(i));
      std::string control = ControlTo(std::string(id.node()));
      if (HasInput(*def, control) && id.index() >= 0) continue;
      inputs.push_back(std::move(control));
    }
    def->set_op("Identity");
    def->clear_attr();
    (*def->mutable_attr())["T"] = type;
    def->clear_input();
    for (std::string& input : inputs) def->add_input(std::move(input));
  }

  // Makes an operand of a node that computes owned parts an owned part, or a scalar.
  void TakePart(int node, int slot, int64_t size, NodeDef* def) {
    const TensorId id = tensorflow::ParseTensorName(def->input(slot));
    if (id.index() < 0) return;
    const int source = updates_.index().at(std::string(id.node()));
    if (parts_.count(source) > 0 || roots_.count(source) > 0) return;
    const auto key = std::make_pair(def->input(slot), size);
    auto found = taken_.find(key);
    if (found == taken_.end()) {
      NodeDef part;
      part.set_name(NewName(absl::StrCat(id.node(), "_owned_part")));
      part.set_op("LibraOwnedPart");
      part.set_device(def->device());
      part.add_input(def->input(slot));
      AddNodeAttr("num_elements", size, &part);
      found = taken_.emplace(key, part.name()).first;
      (*part.mutable_attr())["T"].set_type(OperandType(*def, slot));
      added_.push_back(std::move(part));
    }
    def->set_input(slot, found->second);
  }

  static tensorflow::DataType OperandType(const NodeDef& def, int slot) {
    const tensorflow::OpDef* definition = nullptr;
    tensorflow::DataType type = tensorflow::DT_FLOAT;
    if (tensorflow::OpRegistry::Global()->LookUpOpDef(def.op(), &definition).ok()) {
      tensorflow::DataTypeVector inputs, outputs;
      if (tensorflow::InOutTypesForNode(def, *definition, &inputs, &outputs).ok() &&
          slot < static_cast<int>(inputs.size())) {
        type = inputs[slot];
      }
    }
    return type;
  }

  void WriteAssign(int node, NodeDef* def) {
    const auto dtype = def->attr().at("dtype");
    const char* const mode = AssignMode(def->op());
    const bool is_slot = updates_.IsSlot(updates_.HandleOf(node));
    def->set_op("LibraAssignOwned");
    def->clear_attr();
    (*def->mutable_attr())["dtype"] = dtype;
    AddNodeAttr("mode", mode, def);
    AddNodeAttr("is_slot", is_slot, def);
  }

  // Nodes that touch a weight after its assignment may have lost their control edge to it, as one
  // that follows from others.
  void WaitForGathers(const std::unordered_map<int, int>& copies) {
    for (const auto& [assign, gather] : gathers_of_) {
      const int copy = copies.at(assign);
      const int handle = updates_.HandleOf(assign);
      std::vector<int> reached = {assign};
      std::unordered_set<int> seen = {assign};
      for (size_t i = 0; i < reached.size(); ++i) {
        for (const Use& use : updates_.uses()[reached[i]]) {
          if (seen.insert(use.node).second) reached.push_back(use.node);
        }
      }
      std::vector<int> holders = {handle};
      for (size_t i = 0; i < holders.size(); ++i) {
        for (const Use& use : updates_.uses()[holders[i]]) {
          if (use.port < 0) continue;
          NodeDef* const user = graph_->mutable_node(use.node);
          if (ForwardsHandle(user->op())) holders.push_back(use.node);
          if (seen.count(use.node) == 0) continue;
          const auto later = copies.find(use.node);
          const bool is_later_assign = later != copies.end() && later->second > copy;
          if (parts_.count(use.node) > 0 && !is_later_assign) continue;
          if (IsReadByPartsAlone(use.node)) continue;
          const std::string wait = ControlTo(gather);
          if (!HasInput(*user, wait)) user->add_input(wait);
        }
      }
    }
  }

  bool IsReadByPartsAlone(int node) const {
    if (graph_->node(node).op() != "ReadVariableOp") return false;
    for (const Use& use : updates_.uses()[node]) {
      if (use.port >= 0 && parts_.count(use.node) == 0) return false;
    }
    return true;
  }

  const OwnedUpdates& updates_;
  const std::unordered_map<int, int64_t>& parts_;
  GraphDef* const graph_;
  std::unordered_set<int> roots_;  // all-reduces that become reduce-scatters
  std::unordered_set<std::string> names_;
  std::map<std::pair<std::string, int64_t>, std::string> taken_;
  std::map<int, std::string> owned_names_, gathers_of_;  // by assignment of a weight
  std::vector<NodeDef> added_;
};

}  // namespace

void ShardUpdates(const UpdateSharding& sharding, const NodesToKeep& keep, GraphReport* report,
                  GraphDef* graph) {
  GraphDef sharded = *graph;
  BypassIdentityN(keep, &sharded);
  OwnedUpdates updates(sharding, keep, &sharded);
  std::unordered_map<int, int64_t> parts;
  std::vector<ShardedGroup> groups;
  for (ReportedGroup& group : report->groups) {
    group.whole = updates.Collect(group, parts);
    if (!group.whole.empty()) continue;
    groups.push_back({&group, updates.root(), {}});
    parts.insert(updates.parts().begin(), updates.parts().end());
  }
  if (groups.empty()) return;
  const auto keep_whole = [&](const std::string& reason) {
    for (const ShardedGroup& group : groups) group.reported->whole = reason;
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

  ShardWriter writer(updates, parts, &sharded);
  for (const ShardedGroup& group : groups) writer.WriteScatter(group.root);
  // Ranks have to agree on one order: the all-reduces of a copy, its gathers, those of the next.
  std::vector<std::string> before;
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
    if (copy + 1 < reduces.size()) std::reverse(order.begin(), order.end());
    std::vector<std::string> after = reduces[copy];
    for (const ShardedGroup* const group : order) {
      for (std::string& gather : writer.WriteGathers(group->root, group->assigns, after)) {
        after = before = {gather};
      }
    }
  }
  writer.WriteParts();
  writer.Finish(copies);
  if (!IsLive(sharded, &reason)) {
    return keep_whole(absl::StrCat("updates at the owner would close a cycle: ", reason));
  }
  for (const ShardedGroup& group : groups) group.reported->is_sharded = true;
  *graph = std::move(sharded);
}

}  // namespace tf_libra
