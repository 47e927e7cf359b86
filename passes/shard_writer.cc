#include "passes/shard_writer.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "passes/node_attributes.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace tf_libra {

using tensorflow::AddNodeAttr;
using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::TensorId;

namespace {

constexpr char kInferredShapes[] = "_output_shapes";

// Ops that output the handle that they take.
bool ForwardsHandle(const std::string& op) {
  return op == "Identity" || op == "Switch" || op == "RefSwitch" || op == "_SwitchN" ||
         op == "Merge" || op == "RefMerge";
}

bool HasInput(const NodeDef& node, const std::string& input) {
  for (const std::string& other : node.input()) {
    if (other == input) return true;
  }
  return false;
}

}  // namespace

std::string ControlTo(const std::string& node) { return absl::StrCat("^", node); }

void AddControl(const std::string& from, NodeDef* node) {
  if (!HasInput(*node, ControlTo(from))) node->add_input(ControlTo(from));
}

ShardWriter::ShardWriter(const OwnedUpdates& updates, const std::unordered_map<int, int64_t>& parts,
                         GraphDef* graph)
    : updates_(updates), parts_(parts), graph_(graph) {
  for (const NodeDef& node : graph->node()) names_.insert(node.name());
}

void ShardWriter::WriteScatter(int root) {
  roots_.insert(root);
  NodeDef* const reduce = graph_->mutable_node(root);
  reduce->mutable_attr()->erase(kInferredShapes);
  AddNodeAttr("scatter", true, reduce);
}

void ShardWriter::WriteParts() {
  for (const auto& [node, size] : parts_) {
    NodeDef* const def = graph_->mutable_node(node);
    def->mutable_attr()->erase(kInferredShapes);
    if (def->op() == "ReadVariableOp") {
      const auto dtype = def->attr().at("dtype");
      def->clear_attr();
      def->set_op("LibraReadOwned");
      (*def->mutable_attr())["dtype"] = dtype;
      continue;
    }
    const bool is_assign = AssignMode(def->op()) != nullptr;
    if (IsReshape(def->op())) WriteIdentity(def);
    const int end = def->op() == "Switch" ? 1 : def->input_size();  // without the predicate
    for (int slot = is_assign ? 1 : 0; slot < end; ++slot) {
      TakePart(node, slot, size, def);
    }
    if (is_assign) WriteAssign(node, def);
  }
}

std::string ShardWriter::WriteSums(int root, const std::vector<NamedSum>& sums,
                                   const std::unordered_map<int, Branches>& branches,
                                   const std::vector<std::string>& after) {
  const NodeDef& reduce = graph_->node(root);
  NodeDef axis;
  axis.set_name(NewName(absl::StrCat(reduce.name(), "_axis")));
  axis.set_op("Const");
  axis.set_device(reduce.device());
  AddNodeAttr("dtype", tensorflow::DT_INT32, &axis);
  tensorflow::Tensor zero(tensorflow::DT_INT32, {1});
  zero.flat<int32_t>()(0) = 0;
  AddNodeAttr("value", zero, &axis);
  NodeDef all;
  all.set_name(NewName(absl::StrCat(reduce.name(), "_sums")));
  all.set_op("LibraSumPartials");
  all.set_device(reduce.device());
  BranchWriter passing([this](std::string name) { return NewName(std::move(name)); }, &added_);
  std::vector<tensorflow::DataType> dtypes;
  std::vector<int> dims;
  std::string names;
  for (const auto& [node, name] : sums) {
    absl::StrAppend(&names, names.empty() ? "" : "; ", name);
    exchanged_.push_back(name);
    dims.push_back(updates_.NumDimsOfSum(node));
    NodeDef* const sum = graph_->mutable_node(node);
    const bool is_any = sum->op() == "Any";  // unless all of the negated ones are true
    NodeDef whole;
    whole.set_name(sum->name());
    whole.set_op(is_any ? "LogicalNot" : "Identity");
    whole.set_device(sum->device());
    const std::string output = absl::StrCat(all.name(), ":", dtypes.size());
    dtypes.push_back(SumType(*sum));
    whole.add_input(passing.LeadIn(output, dtypes.back(), sum->device(), branches.at(node)));
    if (!is_any) AddNodeAttr("T", dtypes.back(), &whole);
    sum->set_name(NewName(absl::StrCat(sum->name(), "_partial")));
    sum->mutable_attr()->erase(kInferredShapes);
    if (IsReshape(sum->op())) {
      sum->set_op(dtypes.back() == tensorflow::DT_BOOL ? "All" : "Sum");
      sum->mutable_attr()->erase("Tshape");
      if (sum->op() == "All") sum->mutable_attr()->erase("T");
    }
    if (sum->op() != "L2Loss") {
      sum->set_input(1, axis.name());
      (*sum->mutable_attr())["Tidx"].set_type(tensorflow::DT_INT32);
      (*sum->mutable_attr())["keep_dims"].set_b(false);
    }
    std::string partial = sum->name();
    if (is_any) {
      NodeDef negated;
      negated.set_name(NewName(absl::StrCat(partial, "_not")));
      negated.set_op("LogicalNot");
      negated.set_device(sum->device());
      negated.add_input(partial);
      partial = negated.name();
      added_.push_back(std::move(negated));
    }
    all.add_input(passing.LeadOut(partial, dtypes.back(), sum->device(), branches.at(node)));
    added_.push_back(std::move(whole));
  }
  AddNodeAttr("Ts", dtypes, &all);
  AddNodeAttr("dims", dims, &all);
  AddNodeAttr("name_of_all", absl::StrCat(sums.size(), " sums: ", names), &all);
  CopyAttributes(reduce, {"plan", "function"}, &all);
  for (const std::string& earlier : after) AddControl(earlier, &all);
  added_.push_back(std::move(axis));
  added_.push_back(all);
  return all.name();
}

std::vector<std::string> ShardWriter::WriteGathers(
    const Gather& planned, const std::unordered_map<int, std::string>& variables,
    const std::vector<std::string>& after, bool in_background) {
  const NodeDef reduce = graph_->node(planned.root);
  std::map<tensorflow::DataType, std::vector<int>> by_dtype;
  for (const int node : planned.assigns) {
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
    std::set<int> handles;
    for (const int node : nodes) {
      const int handle = updates_.HandleOf(node);
      if (!handles.insert(handle).second) continue;
      gather.add_input(graph_->node(handle).name());
      names.push_back(absl::StrCat(variables.at(handle), " in ", name));
      exchanged_.push_back(names.back());
    }
    AddNodeAttr("N", static_cast<int>(names.size()), &gather);
    AddNodeAttr("dtype", dtype, &gather);
    AddNodeAttr("names", names, &gather);
    AddNodeAttr("of_step", true, &gather);
    if (in_background) {
      AddNodeAttr("in_background", true, &gather);
      in_background_.emplace(name, std::vector<int>(handles.begin(), handles.end()));
    }
    CopyAttributes(reduce, {"num_threads", "first_lane", "plan", "function"}, &gather);
    if (planned.num_threads > 0) {
      (*gather.mutable_attr())["num_threads"].set_i(planned.num_threads);
      (*gather.mutable_attr())["first_lane"].set_i(0);
    }
    for (const int node : nodes) {
      // Whatever waited for the assignment waits for the gather, except owned parts.
      const std::string old = graph_->node(node).name();
      const auto found = owned_names_.find(node);
      const std::string owned =
          found != owned_names_.end() ? found->second : NewName(absl::StrCat(old, "_owned"));
      owned_names_[node] = owned;
      AddControl(EndOfBranches(node, owned), &gather);
    }
    for (const std::string& earlier : after) gather.add_input(ControlTo(earlier));
    for (const std::string& earlier : gathers) gather.add_input(ControlTo(earlier));
    for (const int node : nodes) gathers_of_[node] = name;
    gathers.push_back(name);
    added_.push_back(std::move(gather));
  }
  return gathers;
}

void ShardWriter::EndStep(const std::string& gather, const std::vector<int>& slots) {
  std::vector<std::string> ends;
  for (const int node : slots) ends.push_back(EndOfBranches(node, graph_->node(node).name()));
  const auto found = std::find_if(added_.begin(), added_.end(),
                                  [&](const NodeDef& node) { return node.name() == gather; });
  AddNodeAttr("ends_step", true, &*found);
  for (const std::string& end : ends) AddControl(end, &*found);
}

void ShardWriter::Finish(const std::unordered_map<int, int>& copies) {
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
  WaitForLastCall();
  for (NodeDef& node : added_) *graph_->add_node() = std::move(node);
}

std::string ShardWriter::NewName(std::string name) {
  const std::string base = name;
  for (int i = 1; !names_.insert(name).second; ++i) name = absl::StrCat(base, "_", i);
  return name;
}

void ShardWriter::WriteIdentity(NodeDef* def) {
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

void ShardWriter::TakePart(int node, int slot, int64_t size, NodeDef* def) {
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

tensorflow::DataType ShardWriter::OperandType(const NodeDef& def, int slot) {
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

void ShardWriter::WriteAssign(int node, NodeDef* def) {
  const auto dtype = def->attr().at("dtype");
  const char* const mode = AssignMode(def->op());
  const bool is_slot = updates_.IsSlot(updates_.HandleOf(node));
  def->set_op("LibraAssignOwned");
  def->clear_attr();
  (*def->mutable_attr())["dtype"] = dtype;
  AddNodeAttr("mode", mode, def);
  AddNodeAttr("is_slot", is_slot, def);
}

std::string ShardWriter::EndOfBranches(int node, const std::string& owned) {
  std::string end = owned;
  for (const int node_of_switch : updates_.SwitchesOf(node)) {
    // TensorFlow's executor runs a Merge when its control inputs have ended or are dead.
    const NodeDef& branches = graph_->node(node_of_switch);
    NodeDef merge;
    merge.set_name(NewName(absl::StrCat(owned, "_end")));
    merge.set_op("Merge");
    merge.set_device(branches.device());
    for (const char* port : {":0", ":1"}) merge.add_input(absl::StrCat(branches.name(), port));
    merge.add_input(ControlTo(end));
    AddNodeAttr("N", 2, &merge);
    AddNodeAttr("T", tensorflow::DT_RESOURCE, &merge);
    end = merge.name();
    added_.push_back(std::move(merge));
  }
  return end;
}

void ShardWriter::WaitForGathers(const std::unordered_map<int, int>& copies) {
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
        AddControl(EndOf(gather), user);
      }
    }
  }
}

std::string ShardWriter::EndOf(const std::string& gather) {
  const auto found = in_background_.find(gather);
  if (found == in_background_.end()) return gather;
  const auto [end, is_new] = ends_.emplace(gather, "");
  if (is_new) end->second = WriteAwait(gather, "end", found->second, {ControlTo(gather)});
  return end->second;
}

void ShardWriter::WaitForLastCall() {
  for (const auto& [gather, handles] : in_background_) {
    const std::string await = WriteAwait(gather, "last_call", handles, {});
    for (const int handle : handles) {
      for (const Use& use : updates_.uses()[handle]) {
        if (use.port >= 0) AddControl(await, graph_->mutable_node(use.node));
      }
    }
  }
}

std::string ShardWriter::WriteAwait(const std::string& gather, const char* what,
                                    const std::vector<int>& handles,
                                    const std::vector<std::string>& after) {
  NodeDef await;
  await.set_name(NewName(absl::StrCat(gather, "_", what)));
  await.set_op("LibraAwaitGather");
  await.set_device(graph_->node(handles[0]).device());
  for (const int handle : handles) await.add_input(graph_->node(handle).name());
  for (const std::string& control : after) await.add_input(control);
  AddNodeAttr("N", static_cast<int>(handles.size()), &await);
  added_.push_back(std::move(await));
  return added_.back().name();
}

bool ShardWriter::IsReadByPartsAlone(int node) const {
  if (graph_->node(node).op() != "ReadVariableOp") return false;
  for (const Use& use : updates_.uses()[node]) {
    if (use.port >= 0 && parts_.count(use.node) == 0) return false;
  }
  return true;
}

}  // namespace tf_libra
