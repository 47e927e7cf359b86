#include "passes/owned_updates.h"

#include <unordered_set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace tf_libra {
namespace {

using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::TensorId;

// Ops whose output i depends on element i of each operand that is no scalar. Python decides whether
// an update is element-wise (capture/elementwise_updates.py); here, another op keeps an update
// whole.
constexpr char kElementwise[] =
    "Abs Add AddN AddV2 Cast Ceil ClipByValue Div DivNoNan Equal Erf Exp Expm1 Floor "
    "FloorDiv FloorMod Greater GreaterEqual Identity Inv IsFinite IsInf IsNan Less "
    "LessEqual Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan "
    "Neg NotEqual OnesLike Pow PreventGradient RealDiv Reciprocal Relu Rint Round Rsqrt "
    "SelectV2 Sigmoid Sign Snapshot Softplus Softsign Sqrt Square SquaredDifference "
    "StopGradient Sub Tanh TruncateDiv Xdivy Xlogy ZerosLike _UnaryOpsComposition ";

bool IsElementwise(const std::string& op) {
  static const auto* const kOps =
      new std::unordered_set<std::string>(absl::StrSplit(kElementwise, ' ', absl::SkipEmpty()));
  return kOps->count(op) > 0;
}

}  // namespace

UpdateShardings& UpdateShardings::Global() {
  static UpdateShardings* const shardings = new UpdateShardings;
  return *shardings;
}

void UpdateShardings::Register(const std::string& id, UpdateSharding sharding) {
  const std::lock_guard<std::mutex> lock(mutex_);
  shardings_.emplace(id, std::make_shared<const UpdateSharding>(std::move(sharding)));
}

std::shared_ptr<const UpdateSharding> UpdateShardings::Find(const std::string& id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = shardings_.find(id);
  return found == shardings_.end() ? nullptr : found->second;
}

bool IsReshape(const std::string& op) {
  return op == "Reshape" || op == "ExpandDims" || op == "Squeeze";
}

bool IsSum(const std::string& op) { return op == "Sum" || op == "L2Loss"; }

const char* AssignMode(const std::string& op) {
  if (op == "AssignVariableOp") return "assign";
  if (op == "AssignAddVariableOp") return "add";
  if (op == "AssignSubVariableOp") return "subtract";
  return nullptr;
}

OwnedUpdates::OwnedUpdates(const UpdateSharding& sharding, const NodesToKeep& keep,
                           const GraphDef* graph)
    : sharding_(sharding), keep_(keep), graph_(graph) {
  const int num_nodes = graph->node_size();
  for (int i = 0; i < num_nodes; ++i) index_.emplace(graph->node(i).name(), i);
  uses_.resize(num_nodes);
  for (int i = 0; i < num_nodes; ++i) {
    const NodeDef& node = graph->node(i);
    for (int slot = 0; slot < node.input_size(); ++slot) {
      const TensorId id = tensorflow::ParseTensorName(node.input(slot));
      const auto found = index_.find(std::string(id.node()));
      if (found != index_.end()) uses_[found->second].push_back({i, slot, id.index()});
    }
  }
}

std::string OwnedUpdates::Collect(const ReportedGroup& group,
                                  const std::unordered_map<int, int64_t>& taken) {
  sums_.clear();
  parts_.clear();
  variables_.clear();
  waiting_.clear();
  reason_.clear();
  taken_ = &taken;
  const auto found = index_.find(group.node);
  if (found == index_.end()) return "the all-reduce is not in the graph";
  root_ = found->second;
  for (size_t i = 0; i < group.tensors.size(); ++i) {
    const auto size = sharding_.num_elements.find(group.tensors[i].name);
    if (size == sharding_.num_elements.end()) {
      return absl::StrCat("'", group.tensors[i].name, "' has no element-wise update");
    }
    for (const Use& use : uses_[root_]) {
      if (use.port == static_cast<int>(i)) Add(use.node, use.slot, size->second);
    }
  }
  while (!waiting_.empty() && reason_.empty()) {
    const int node = waiting_.back();
    waiting_.pop_back();
    const int64_t size = parts_.at(node);
    if (AssignMode(graph_->node(node).op()) != nullptr) {
      VisitVariable(node, size);
      continue;
    }
    for (const Use& use : uses_[node]) {
      if (use.port >= 0) Add(use.node, use.slot, size);
    }
  }
  return reason_;
}

int OwnedUpdates::NumDimsOfSum(int node) const {
  const NodeDef& def = graph_->node(node);
  const auto keeps = def.attr().find("keep_dims");
  if (keeps == def.attr().end() || !keeps->second.b()) return 0;
  const auto axes = index_.find(std::string(tensorflow::ParseTensorName(def.input(1)).node()));
  if (axes == index_.end() || graph_->node(axes->second).op() != "Const") return -1;
  const auto& shape = graph_->node(axes->second).attr().at("value").tensor().tensor_shape();
  return shape.dim_size() == 0 ? 1 : static_cast<int>(shape.dim(0).size());
}

int OwnedUpdates::HandleOf(int node) const {
  int at = node;
  do {
    const TensorId id = tensorflow::ParseTensorName(graph_->node(at).input(0));
    at = index_.at(std::string(id.node()));
  } while (graph_->node(at).op() == "Identity" && graph_->node(at).input_size() > 0);
  return at;
}

bool OwnedUpdates::IsSlot(int handle) const {
  const NodeDef& node = graph_->node(handle);
  const auto index = node.attr().find("index");
  return node.op() == "_Arg" && index != node.attr().end() &&
         sharding_.slots.count(static_cast<int>(index->second.i())) > 0;
}

void OwnedUpdates::Fail(int node, const char* what) {
  if (reason_.empty()) {
    reason_ =
        absl::StrCat("'", graph_->node(node).name(), "' (", graph_->node(node).op(), ") ", what);
  }
}

void OwnedUpdates::Add(int node, int slot, int64_t size) {
  const NodeDef& def = graph_->node(node);
  const bool is_assign = AssignMode(def.op()) != nullptr && slot == 1;
  const bool keeps_order = IsReshape(def.op()) && slot == 0;
  if (IsSum(def.op()) && slot == 0) {
    if (absl::StrContains(def.device(), "GPU")) return Fail(node, "runs on a GPU");
    if (NumDimsOfSum(node) < 0) return Fail(node, "has axes that are no constant");
    const auto type = def.attr().find("T");
    if (type == def.attr().end() || !tensorflow::DataTypeIsFloating(type->second.type())) {
      return Fail(node, "sums no floating-point numbers");
    }
    sums_.insert(node);
    return;
  }
  if (!is_assign && !keeps_order && !IsElementwise(def.op())) {
    return Fail(node, "reads all elements");
  }
  if (absl::StrContains(def.device(), "GPU")) return Fail(node, "runs on a GPU");
  if (keep_.fetched.count(def.name()) > 0 || keep_.fed.count(def.name()) > 0) {
    return Fail(node, "is a result of the function");
  }
  const auto other = taken_->find(node);
  if (other != taken_->end()) {
    if (other->second != size) Fail(node, "combines tensors of different sizes");
    return;
  }
  const auto [found, is_new] = parts_.emplace(node, size);
  if (found->second != size) return Fail(node, "combines tensors of different sizes");
  if (is_new) waiting_.push_back(node);
}

void OwnedUpdates::VisitVariable(int node, int64_t size) {
  const int handle = HandleOf(node);
  if (graph_->node(handle).op() != "_Arg") return Fail(node, "is conditional or in a loop");
  const auto [found, is_new] = variables_.emplace(handle, size);
  if (found->second != size) return Fail(node, "writes tensors of different sizes");
  if (!is_new) return;
  std::vector<int> holders = {handle};
  for (size_t i = 0; i < holders.size(); ++i) {
    for (const Use& use : uses_[holders[i]]) {
      if (use.port < 0) continue;
      const NodeDef& user = graph_->node(use.node);
      if (user.op() == "Enter") return Fail(use.node, "uses the variable in a loop");
      if (user.op() == "Identity") {
        holders.push_back(use.node);
      } else if (AssignMode(user.op()) != nullptr && use.slot == 0) {
        Add(use.node, 1, size);
      } else if (IsSlot(handle)) {
        if (user.op() != "ReadVariableOp") return Fail(use.node, "uses a slot");
        if (keep_.fetched.count(user.name()) > 0) {
          return Fail(use.node, "is a result of the function");
        }
        if (taken_->count(use.node) > 0) continue;
        parts_.emplace(use.node, size);
        for (const Use& reader : uses_[use.node]) {
          if (reader.port >= 0) Add(reader.node, reader.slot, size);
        }
      }
    }
  }
}

}  // namespace tf_libra
