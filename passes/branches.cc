#include "passes/branches.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/grappler/op_types.h"

namespace tf_libra {

using tensorflow::AddNodeAttr;
using tensorflow::NodeDef;

namespace {

// Under how many conditions the predicate is there.
size_t NumConditions(const IndexedGraph& graph, const Condition& condition) {
  const size_t of_node = graph.conditions[graph.contexts[condition.node]].size();
  return of_node + (tensorflow::grappler::IsSwitch(graph.def->node(condition.node)) ? 1 : 0);
}

bool IsOfSwitch(const IndexedGraph& graph, const Condition& condition) {
  for (int i = 0; i < graph.def->node_size(); ++i) {
    if (!tensorflow::grappler::IsSwitch(graph.def->node(i)) || graph.fanins[i].size() < 2) continue;
    const Fanin& predicate = graph.fanins[i][1];
    if (predicate.node == condition.node && predicate.port == condition.port) return true;
  }
  return false;
}

}  // namespace

bool IsUnconditional(const IndexedGraph& graph, int node) {
  return graph.conditions[graph.contexts[node]].empty();
}

std::optional<Branches> BranchesOf(const IndexedGraph& graph, int node) {
  std::vector<std::pair<size_t, Condition>> from_outermost;
  for (const Condition& condition : graph.conditions[graph.contexts[node]]) {
    if (condition.is_loop() || !IsOfSwitch(graph, condition)) return std::nullopt;
    from_outermost.emplace_back(NumConditions(graph, condition), condition);
  }
  std::sort(from_outermost.begin(), from_outermost.end());
  Branches branches;
  for (size_t i = 0; i < from_outermost.size(); ++i) {
    const auto& [num_outer, condition] = from_outermost[i];
    // The predicate of an inner conditional is in the branch of the outer one.
    if (num_outer != i) return std::nullopt;
    branches.push_back({absl::StrCat(graph.def->node(condition.node).name(), ":", condition.port),
                        condition.taken});
  }
  return branches;
}

std::string BranchWriter::LeadOut(const std::string& value, tensorflow::DataType dtype,
                                  const std::string& device, const Branches& branches) {
  if (branches.empty()) return value;
  const std::string name(tensorflow::ParseTensorName(value).node());
  NodeDef constant;
  constant.set_name(new_name_(absl::StrCat(name, "_zero")));
  constant.set_op("Const");
  constant.set_device(device);
  tensorflow::Tensor zero(dtype, {});
  std::memset(zero.data(), 0, zero.TotalBytes());
  AddNodeAttr("dtype", dtype, &constant);
  AddNodeAttr("value", zero, &constant);
  std::string untaken = constant.name();
  added_->push_back(std::move(constant));
  std::vector<std::string> zeros;  // by branch, in the other branch
  for (const Branch& branch : branches) {
    const std::string both = Switch(untaken, dtype, device, branch);
    zeros.push_back(absl::StrCat(both, ":", 1 - branch.taken));
    untaken = absl::StrCat(both, ":", branch.taken);
  }
  std::string out = value;
  for (; !zeros.empty(); zeros.pop_back()) {
    NodeDef merge;
    merge.set_name(new_name_(absl::StrCat(name, "_merged")));
    merge.set_op("Merge");
    merge.set_device(device);
    merge.add_input(out);
    merge.add_input(zeros.back());
    AddNodeAttr("N", 2, &merge);
    AddNodeAttr("T", dtype, &merge);
    out = merge.name();
    added_->push_back(std::move(merge));
  }
  return out;
}

std::string BranchWriter::LeadIn(const std::string& value, tensorflow::DataType dtype,
                                 const std::string& device, const Branches& branches) {
  std::string in = value;
  for (const Branch& branch : branches) {
    in = absl::StrCat(Switch(in, dtype, device, branch), ":", branch.taken);
  }
  return in;
}

std::string BranchWriter::Switch(const std::string& value, tensorflow::DataType dtype,
                                 const std::string& device, const Branch& branch) {
  NodeDef both;
  const std::string name(tensorflow::ParseTensorName(value).node());
  both.set_name(new_name_(absl::StrCat(name, "_switch")));
  both.set_op("Switch");
  both.set_device(device);
  both.add_input(value);
  both.add_input(branch.predicate);
  AddNodeAttr("T", dtype, &both);
  added_->push_back(both);
  return both.name();
}

}  // namespace tf_libra
