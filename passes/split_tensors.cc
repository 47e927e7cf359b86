#include "passes/split_tensors.h"

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "passes/pending_all_reduces.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/grappler/utils.h"

namespace tf_libra {
namespace {

using tensorflow::NodeDef;
using tensorflow::TensorId;
using tensorflow::grappler::TensorIdToString;

using Starts = std::vector<int64_t>;  // where each part of a tensor begins

std::map<std::string, Starts> StartsOfTensors(const RegisteredPlan& plan) {
  std::map<std::string, Starts> starts;
  for (const PlanGroup& group : plan.groups) {
    for (size_t i = 0; i < group.part_starts.size(); ++i) {
      if (group.part_starts[i] == kWholeTensor) continue;
      starts[group.tensor_names[i]].push_back(group.part_starts[i]);
    }
  }
  return starts;
}

// One all-reduce that is cut.
struct Cut {
  std::string node;  // LibraCut
  std::vector<std::string> parts;
  const Starts* starts;
};

std::string FreeName(const std::string& wanted, std::unordered_set<std::string>* taken) {
  std::string name = wanted;
  for (int i = 1; !taken->insert(name).second; ++i) name = absl::StrCat(wanted, "_", i);
  return name;
}

bool IsControl(const std::string& input) { return absl::StartsWith(input, "^"); }

// Returns a node with the dtype and device of the all-reduce, without shapes and collocation.
NodeDef NodeLike(const NodeDef& all_reduce, const char* op, const std::string& name) {
  NodeDef node;
  node.set_op(op);
  node.set_name(name);
  node.set_device(all_reduce.device());
  (*node.mutable_attr())["T"] = all_reduce.attr().at("T");
  return node;
}

NodeDef Part(const NodeDef& all_reduce, const Cut& cut, size_t index) {
  NodeDef part = NodeLike(all_reduce, "LibraAllReduce", cut.parts[index]);
  for (const auto& [name, value] : all_reduce.attr()) {
    if (!absl::StartsWith(name, "_")) (*part.mutable_attr())[name] = value;
  }
  part.mutable_attr()->erase("part_starts");  // traced with its default
  tensorflow::AddNodeAttr("part_starts", Starts{(*cut.starts)[index]}, &part);
  part.add_input(TensorIdToString({cut.node, static_cast<int>(index) + 1}));
  for (const std::string& input : all_reduce.input()) {
    if (IsControl(input)) part.add_input(input);
  }
  return part;
}

NodeDef CutOf(const NodeDef& all_reduce, const Cut& cut,
              const std::unordered_set<std::string>& marked) {
  NodeDef node = NodeLike(all_reduce, "LibraCut", cut.node);
  tensorflow::AddNodeAttr("K", static_cast<int>(cut.starts->size()), &node);
  tensorflow::AddNodeAttr("starts", *cut.starts, &node);
  for (const std::string& input : all_reduce.input()) {
    // The order of all-reduces is not its business.
    const std::string from(tensorflow::ParseTensorName(input).node());
    if (!IsControl(input) || marked.count(from) == 0) node.add_input(input);
  }
  return node;
}

// Turns the all-reduce, whose name and readers stay, into the join of its parts.
void Join(const Cut& cut, NodeDef* node) {
  NodeDef join = NodeLike(*node, "LibraJoin", node->name());
  for (const auto& [name, value] : node->attr()) {
    if (absl::StartsWith(name, "_")) (*join.mutable_attr())[name] = value;
  }
  tensorflow::AddNodeAttr("K", static_cast<int>(cut.parts.size()), &join);
  join.add_input(cut.node);
  for (const std::string& part : cut.parts) join.add_input(part);
  *node = std::move(join);
}

}  // namespace

bool CutsTensors(const RegisteredPlan& plan, const Rewriter& rewriter) {
  return rewriter.TakesParts() && !StartsOfTensors(plan).empty();
}

void CutTensors(const RegisteredPlan& plan, const std::unordered_set<std::string>& fed,
                tensorflow::GraphDef* graph) {
  const std::map<std::string, Starts> starts = StartsOfTensors(plan);
  std::unordered_set<std::string> taken, marked;
  for (const NodeDef& node : graph->node()) {
    taken.insert(node.name());
    if (IsPendingAllReduce(node)) marked.insert(node.name());
  }
  std::unordered_map<std::string, Cut> cuts;  // by the name of the all-reduce
  for (const NodeDef& node : graph->node()) {
    if (marked.count(node.name()) == 0 || fed.count(node.name()) > 0) continue;
    if (HasRowsOfRanks(node)) continue;
    const auto names = node.attr().find("tensor_names");
    if (names == node.attr().end() || names->second.list().s_size() != 1) continue;
    const auto found = starts.find(names->second.list().s(0));
    if (found == starts.end() || node.attr().count("T") == 0) continue;
    Cut cut{FreeName(absl::StrCat(node.name(), "_cut"), &taken), {}, &found->second};
    for (size_t i = 0; i < found->second.size(); ++i) {
      cut.parts.push_back(FreeName(absl::StrCat(node.name(), "_part_", i), &taken));
    }
    cuts.emplace(node.name(), std::move(cut));
  }
  for (NodeDef& node : *graph->mutable_node()) {
    if (marked.count(node.name()) == 0) continue;
    const int num_inputs = node.input_size();
    for (int i = 0; i < num_inputs; ++i) {
      if (!IsControl(node.input(i))) continue;
      const auto before = cuts.find(node.input(i).substr(1));
      if (before == cuts.end()) continue;
      const std::vector<std::string>& parts = before->second.parts;
      node.set_input(i, absl::StrCat("^", parts[0]));
      for (size_t j = 1; j < parts.size(); ++j) node.add_input(absl::StrCat("^", parts[j]));
    }
  }
  for (const auto& [name, cut] : cuts) {
    for (const std::string& part : cut.parts) marked.insert(part);
  }
  const int num_nodes = graph->node_size();
  for (int i = 0; i < num_nodes; ++i) {
    const auto found = cuts.find(graph->node(i).name());
    if (found == cuts.end()) continue;
    const Cut& cut = found->second;
    const NodeDef all_reduce = graph->node(i);
    *graph->add_node() = CutOf(all_reduce, cut, marked);
    for (size_t part = 0; part < cut.parts.size(); ++part) {
      *graph->add_node() = Part(all_reduce, cut, part);
    }
    Join(cut, graph->mutable_node(i));
  }
}

}  // namespace tf_libra
