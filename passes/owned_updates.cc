#include "passes/owned_updates.h"

#include <algorithm>
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
    "Select SelectV2 Sigmoid Sign Snapshot Softplus Softsign Sqrt Square SquaredDifference "
    "StopGradient Sub Tanh TruncateDiv Xdivy Xlogy ZerosLike _UnaryOpsComposition ";

// Outside of loops, whose frame `Enter` begins.
bool PassesHandle(const NodeDef& node) {
  return (node.op() == "Identity" || node.op() == "Switch") && node.input_size() > 0;
}

int NumDataInputs(const NodeDef& node) {
  return std::count_if(node.input().begin(), node.input().end(), [](const std::string& input) {
    return tensorflow::ParseTensorName(input).index() >= 0;
  });
}

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

bool IsSum(const std::string& op) {
  return op == "Sum" || op == "L2Loss" || op == "All" || op == "Any";
}

tensorflow::DataType SumType(const NodeDef& sum) {
  if (sum.op() == "All" || sum.op() == "Any") return tensorflow::DT_BOOL;
  const auto type = sum.attr().find("T");
  return type == sum.attr().end() ? tensorflow::DT_INVALID : type->second.type();
}

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
  do {
    CollectParts(group, taken);
  } while (!reason_.empty() && AddSumsOfOneElement());
  return reason_;
}

bool OwnedUpdates::AddSumsOfOneElement() {
  bool finds_more = false;
  for (const auto& [node, size] : parts_) {
    const NodeDef& def = graph_->node(node);
    if (size != 1 || def.op() != "Reshape" || NumDimsOfSum(node) < 0) continue;
    finds_more = sums_of_one_.insert(node).second || finds_more;
  }
  return finds_more;
}

void OwnedUpdates::CollectParts(const ReportedGroup& group,
                                const std::unordered_map<int, int64_t>& taken) {
  sums_.clear();
  parts_.clear();
  variables_.clear();
  waiting_.clear();
  later_.clear();
  reason_.clear();
  taken_ = &taken;
  const auto found = index_.find(group.node);
  if (found == index_.end()) {
    reason_ = "the all-reduce is not in the graph";
    return;
  }
  root_ = found->second;
  for (size_t i = 0; i < group.tensors.size(); ++i) {
    const auto size = sharding_.num_elements.find(group.tensors[i].name);
    if (size == sharding_.num_elements.end()) {
      reason_ = absl::StrCat("'", group.tensors[i].name, "' has no element-wise update");
      return;
    }
    for (const Use& use : uses_[root_]) {
      if (use.port == static_cast<int>(i)) Add(use.node, use.slot, size->second);
    }
  }
  do {
    VisitParts();
  } while (reason_.empty() && AddAssignsBetweenUpdates());
}

bool OwnedUpdates::AddAssignsBetweenUpdates() {
  const std::vector<std::pair<int, int64_t>> later = std::exchange(later_, {});
  for (const auto& [assign, size] : later) {
    if (parts_.count(assign) > 0) continue;
    const bool is_between =
        std::any_of(parts_.begin(), parts_.end(), [&, assign = assign](auto& part) {
          const bool is_assign = AssignMode(graph_->node(part.first).op()) != nullptr;
          return is_assign && HandleOf(part.first) == HandleOf(assign) &&
                 IsBehind(assign, part.first);
        });
    if (is_between) {
      Add(assign, 1, size);
    } else {
      later_.emplace_back(assign, size);
    }
  }
  return later_.size() < later.size() && !waiting_.empty();
}

void OwnedUpdates::VisitParts() {
  while (!waiting_.empty() && reason_.empty()) {
    const int node = waiting_.back();
    waiting_.pop_back();
    const int64_t size = parts_.at(node);
    if (AssignMode(graph_->node(node).op()) != nullptr) {
      VisitVariable(node, size);
      continue;
    }
    const bool is_merge = graph_->node(node).op() == "Merge";  // its other output is an index
    for (const Use& use : uses_[node]) {
      if (use.port == 0 || (use.port > 0 && !is_merge)) Add(use.node, use.slot, size);
    }
  }
}

int OwnedUpdates::NumDimsOfSum(int node) const {
  const NodeDef& def = graph_->node(node);
  const auto keeps = def.attr().find("keep_dims");
  const bool keeps_dims = keeps != def.attr().end() && keeps->second.b();
  if (!keeps_dims && def.op() != "Reshape") return 0;
  const auto axes = index_.find(std::string(tensorflow::ParseTensorName(def.input(1)).node()));
  if (axes == index_.end() || graph_->node(axes->second).op() != "Const") return -1;
  const auto& shape = graph_->node(axes->second).attr().at("value").tensor().tensor_shape();
  return shape.dim_size() == 0 ? 1 : static_cast<int>(shape.dim(0).size());
}

int OwnedUpdates::HandleOf(int node) const {
  int at = node;
  do {
    at = SourceOfFirst(at);
  } while (PassesHandle(graph_->node(at)));
  return at;
}

std::vector<int> OwnedUpdates::SwitchesOf(int node) const {
  std::vector<int> switches;
  for (int at = SourceOfFirst(node); PassesHandle(graph_->node(at)); at = SourceOfFirst(at)) {
    if (graph_->node(at).op() == "Switch") switches.push_back(at);
  }
  return switches;
}

int OwnedUpdates::SourceOfFirst(int node) const {
  return index_.at(std::string(tensorflow::ParseTensorName(graph_->node(node).input(0)).node()));
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
  // All inputs of a Merge are elements, of which one branch has computed those that are there.
  const bool keeps_order =
      def.op() == "Merge" || ((IsReshape(def.op()) || def.op() == "Switch") && slot == 0);
  if ((IsSum(def.op()) || sums_of_one_.count(node) > 0) && slot == 0) {
    if (absl::StrContains(def.device(), "GPU")) return Fail(node, "runs on a GPU");
    if (NumDimsOfSum(node) < 0) return Fail(node, "has axes that are no constant");
    const tensorflow::DataType type = SumType(def);
    if (type != tensorflow::DT_BOOL && !tensorflow::DataTypeIsFloating(type)) {
      return Fail(node, "sums no floating-point numbers");
    }
    sums_.insert(node);
    return;
  }
  if (!is_assign && !keeps_order && !IsElementwise(def.op())) {
    return Fail(node, "reads all elements");
  }
  if (def.op() == "AddN" && NumDataInputs(def) > 2) {
    return Fail(node, "adds in an order that depends on whose memory it may use");
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

bool OwnedUpdates::IsBehind(int earlier, int later) const {
  std::vector<int> reached = {earlier};
  std::unordered_set<int> seen = {earlier};
  for (size_t i = 0; i < reached.size() && seen.count(later) == 0; ++i) {
    for (const Use& use : uses_[reached[i]]) {
      if (seen.insert(use.node).second) reached.push_back(use.node);
    }
  }
  return earlier != later && seen.count(later) > 0;
}

void OwnedUpdates::VisitVariable(int node, int64_t size) {
  const int handle = HandleOf(node);
  if (graph_->node(handle).op() != "_Arg") return Fail(node, "is in a loop or a tf.switch_case");
  const auto [found, is_new] = variables_.emplace(handle, size);
  if (found->second != size) return Fail(node, "writes tensors of different sizes");
  if (!is_new) return;
  std::vector<int> holders = {handle};
  for (size_t i = 0; i < holders.size(); ++i) {
    for (const Use& use : uses_[holders[i]]) {
      if (use.port < 0) continue;
      const NodeDef& user = graph_->node(use.node);
      if (user.op() == "Enter") return Fail(use.node, "uses the variable in a loop");
      if (PassesHandle(user)) {
        holders.push_back(use.node);
      } else if (AssignMode(user.op()) != nullptr && use.slot == 0) {
        // What constrains the updated weight, or replaces it by an average, may wait for the
        // gather.
        if (!IsSlot(handle) && IsBehind(node, use.node)) {
          later_.emplace_back(use.node, size);
        } else {
          Add(use.node, 1, size);
        }
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
