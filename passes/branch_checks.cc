#include "passes/branch_checks.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "passes/pending_all_reduces.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/grappler/op_types.h"

namespace tf_libra {
namespace {

using tensorflow::NodeDef;

// Ops whose results are the same on every rank, as they come from all of them.
constexpr const char* kUniformOps[] = {
    "LibraAllReduce",         "LibraAllReduceWait",    "LibraCheckBranch",
    "HorovodAllreduce",       "HorovodAllgather",      "HorovodBroadcast",
    "CollectiveReduce",       "CollectiveReduceV2",    "CollectiveReduceV3",
    "CollectiveGather",       "CollectiveGatherV2",    "CollectiveBcastSend",
    "CollectiveBcastRecv",    "CollectiveBcastSendV2", "CollectiveBcastRecvV2",
    "HorovodGroupedAllreduce"};

bool IsAllReduce(const NodeDef& node) { return node.op() == "LibraAllReduce" || IsWritten(node); }

std::vector<std::string> TensorNames(const NodeDef& node) {
  std::vector<std::string> names;
  for (const char* attr : {"tensor_names", "_tf_libra_tensor_names"}) {
    if (tensorflow::TryGetNodeAttr(node, attr, &names) && !names.empty()) return names;
  }
  return {node.name()};
}

// Returns the properties by which the all-reduces of two branches are compared.
std::string Signature(const NodeDef& node) {
  std::string signature;
  for (const char* attr : {"plan", "group", "_tf_libra_group", "function", "reduction", "T"}) {
    const auto found = node.attr().find(attr);
    if (found == node.attr().end()) continue;
    absl::StrAppend(&signature, attr, "=", found->second.ShortDebugString(), ";");
  }
  for (const std::string& name : TensorNames(node)) absl::StrAppend(&signature, name, ",");
  // Horovod matches all-reduces by the names of their nodes, which copies do not share.
  if (!absl::StartsWith(node.op(), "Libra")) absl::StrAppend(&signature, ";node=", node.name());
  return signature;
}

// "while_9" before "while_10".
bool NaturallyLess(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  const auto number = [](const std::string& text, size_t* at) {
    uint64_t value = 0;
    while (*at < text.size() && absl::ascii_isdigit(text[*at])) {
      value = 10 * value + static_cast<uint64_t>(text[(*at)++] - '0');
    }
    return value;
  };
  while (i < a.size() && j < b.size()) {
    if (absl::ascii_isdigit(a[i]) && absl::ascii_isdigit(b[j])) {
      const uint64_t x = number(a, &i), y = number(b, &j);
      if (x != y) return x < y;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

// The name of a conditional or loop by the node that was made for it when it was lowered:
// "cond/switch_pred/_0" is of "cond".
std::string NameOfControlFlow(const std::string& node) {
  const size_t slash = node.rfind('/');
  const bool is_numbered =
      slash != std::string::npos && slash + 1 < node.size() && node[slash + 1] == '_';
  const std::string made = is_numbered ? node.substr(0, slash) : node;
  const size_t last = made.rfind('/');
  return last == std::string::npos ? made : made.substr(0, last);
}

// Without the bodies of control flow around it: "while/body/_1/while/IsFinite" is "while/IsFinite".
std::string NameInBody(const std::string& node) {
  size_t begin = 0;
  for (size_t at = node.find("/_"); at != std::string::npos; at = node.find("/_", at + 1)) {
    size_t end = at + 2;
    while (end < node.size() && absl::ascii_isdigit(node[end])) ++end;
    if (end > at + 2 && end < node.size() && node[end] == '/') begin = end + 1;
  }
  return node.substr(begin);
}

class Uniformity {
 public:
  Uniformity(const IndexedGraph& graph, const std::function<bool(const NodeDef&)>& is_stateful)
      : graph_(graph), is_stateful_(is_stateful) {}

  // Returns whether all that `node` is computed from is the same on every rank.
  bool IsUniform(int node) const {
    std::vector<int> pending = {node};
    std::set<int> seen = {node};
    while (!pending.empty()) {
      const NodeDef& next = graph_.def->node(pending.back());
      pending.pop_back();
      if (IsUniformOp(next)) continue;
      if (is_stateful_(next) || !MayBeUniform(next)) return false;
      for (const std::string& input : next.input()) {
        if (input[0] == '^') continue;
        const auto found = graph_.index.find(tensorflow::ParseTensorName(input).node());
        if (found == graph_.index.end()) return false;
        if (seen.insert(found->second).second) pending.push_back(found->second);
      }
    }
    return true;
  }

 private:
  static bool IsUniformOp(const NodeDef& node) {
    if (node.op() == "Const" || IsWritten(node)) return true;
    // Ranks of a set of Horovod's have the same result, and others have none.
    const auto set = node.attr().find("process_set_id");
    if (set != node.attr().end() && set->second.i() != 0) return false;
    return std::any_of(std::begin(kUniformOps), std::end(kUniformOps),
                       [&node](const char* op) { return node.op() == op; });
  }

  // Arguments are a rank's own; a Merge of branches tells which one was taken, that of a loop not.
  bool MayBeUniform(const NodeDef& node) const {
    if (node.input_size() == 0) return false;
    if (!tensorflow::grappler::IsMerge(node)) return true;
    return std::any_of(node.input().begin(), node.input().end(), [this](const std::string& input) {
      const auto found = graph_.index.find(tensorflow::ParseTensorName(input).node());
      return found != graph_.index.end() &&
             tensorflow::grappler::IsNextIteration(graph_.def->node(found->second));
    });
  }

  const IndexedGraph& graph_;
  const std::function<bool(const NodeDef&)>& is_stateful_;
};

// All-reduces that depend on one predicate.
struct Dependent {
  std::map<int, std::multiset<std::string>> by_branch;  // what each branch performs
  std::string tensor;                                   // the first by name
  int all_reduce = -1;
  size_t depth = 0;  // how many conditions are around the all-reduce
  bool is_switch_n = false;
};

using Predicate = std::pair<int, int>;  // node, port

std::map<Predicate, Dependent> FindDependents(const IndexedGraph& graph) {
  std::map<Predicate, Dependent> dependents;
  for (int i = 0; i < graph.def->node_size(); ++i) {
    const NodeDef& node = graph.def->node(i);
    if (!IsAllReduce(node)) continue;
    const Conditions& conditions = graph.conditions[graph.contexts[i]];
    const std::vector<std::string> names = TensorNames(node);
    const std::string first = *std::min_element(names.begin(), names.end(), NaturallyLess);
    for (const Condition& condition : conditions) {
      if (condition.is_loop()) continue;
      Dependent& of = dependents[{condition.node, condition.port}];
      std::string performs = Signature(node);
      for (const Condition& other : conditions) {
        const bool is_same = other.node == condition.node && other.port == condition.port;
        if (is_same) continue;
        absl::StrAppend(&performs, "|", other.node, ":", other.port, ":", other.taken, other.frame);
      }
      of.by_branch[condition.taken].insert(std::move(performs));
      if (of.all_reduce < 0 || NaturallyLess(first, of.tensor)) {
        of.tensor = first;
        of.all_reduce = i;
        of.depth = conditions.size();
      }
    }
  }
  return dependents;
}

// The conditionals that follow a predicate.
struct Followers {
  std::string first;  // by name
  bool is_switch_n = false;
};

// In one pass for all predicates: a pass for each is quadratic in conditionals.
std::map<Predicate, Followers> FindFollowers(const IndexedGraph& graph) {
  std::map<Predicate, Followers> followers;
  for (int i = 0; i < graph.def->node_size(); ++i) {
    const NodeDef& node = graph.def->node(i);
    const bool is_n = node.op() == "_SwitchN";
    if (!is_n && !tensorflow::grappler::IsSwitch(node)) continue;
    const std::vector<Fanin>& fanins = graph.fanins[i];
    if (fanins.size() < 2) continue;
    Followers& of = followers[{fanins[1].node, fanins[1].port}];
    of.is_switch_n = of.is_switch_n || is_n;
    const std::string name = NameOfControlFlow(node.name());
    if (of.first.empty() || NaturallyLess(name, of.first)) of.first = name;
  }
  return followers;
}

}  // namespace

std::vector<BranchCheck> FindBranchChecks(const IndexedGraph& graph,
                                          const std::function<bool(const NodeDef&)>& is_stateful) {
  const Uniformity uniformity(graph, is_stateful);
  std::map<Predicate, Followers> followers = FindFollowers(graph);
  std::vector<std::tuple<std::string, size_t, std::string, BranchCheck, bool>> found;
  for (const auto& [predicate, of] : FindDependents(graph)) {
    BranchCheck check;
    const NodeDef& node = graph.def->node(predicate.first);
    check.is_loop = tensorflow::grappler::IsLoopCond(node);
    check.followed = {predicate.first, predicate.second};
    check.predicate = check.is_loop ? graph.fanins[predicate.first][0] : check.followed;
    const auto& [name, is_switch_n] = followers[predicate];
    const auto& branches = of.by_branch;
    const bool are_alike = !check.is_loop && !is_switch_n && branches.size() == 2 &&
                           branches.begin()->second == branches.rbegin()->second;
    const bool is_needed = !are_alike && !uniformity.IsUniform(check.predicate.node);
    if (check.is_loop) {
      const std::string loop = NameInBody(NameOfControlFlow(node.name()));
      check.condition = absl::StrCat("the loop '", loop, "'");
    } else {
      const std::string by = NameInBody(graph.def->node(check.predicate.node).name());
      check.condition = absl::StrCat("the condition '", NameInBody(name), "' (by '", by, "')");
    }
    check.tensor = of.tensor;
    check.all_reduce = of.all_reduce;
    for (const char* attr : {"function", "_tf_libra_function"}) {
      tensorflow::TryGetNodeAttr(graph.def->node(of.all_reduce), attr, &check.function);
    }
    found.emplace_back(of.tensor, of.depth, name, std::move(check), is_needed);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    if (std::get<0>(a) != std::get<0>(b)) return std::get<0>(a) < std::get<0>(b);
    if (std::get<1>(a) != std::get<1>(b)) return std::get<1>(a) < std::get<1>(b);
    return NaturallyLess(std::get<2>(a), std::get<2>(b));
  });
  // Predicates without a check count, too: one that is left out on one rank moves no other's key.
  std::vector<BranchCheck> checks;
  for (size_t i = 0; i < found.size(); ++i) {
    auto& [tensor, depth, name, check, is_needed] = found[i];
    if (!is_needed) continue;
    check.key = absl::StrCat(check.function, "/", check.tensor, "/", i);
    checks.push_back(std::move(check));
  }
  return checks;
}

namespace {

absl::Status Insert(const BranchCheck& check, const NodeDef& predicate, const NodeDef& followed,
                    const std::unordered_map<std::string, tensorflow::Node*>& nodes,
                    const std::string& all_reduce, tensorflow::Graph* graph) {
  tensorflow::Node* const from = nodes.at(predicate.name());
  tensorflow::Node* const by = nodes.at(followed.name());
  const tensorflow::Node* const reduces = nodes.at(all_reduce);
  NodeDef def;
  def.set_name(graph->NewName(absl::StrCat(predicate.name(), "/LibraCheckBranch")));
  def.set_op("LibraCheckBranch");
  def.set_device(reduces->requested_device());
  def.add_input(absl::StrCat(predicate.name(), ":", check.predicate.port));
  tensorflow::AddNodeAttr("T", from->output_type(check.predicate.port), &def);
  tensorflow::AddNodeAttr("condition", check.condition, &def);
  tensorflow::AddNodeAttr("tensor_name", check.tensor, &def);
  tensorflow::AddNodeAttr("function", check.function, &def);
  tensorflow::AddNodeAttr("key", check.key, &def);
  tensorflow::AddNodeAttr("is_loop", check.is_loop, &def);
  absl::Status status;
  tensorflow::Node* const added = graph->AddNode(std::move(def), &status);
  TF_RETURN_IF_ERROR(status);
  added->set_assigned_device_name(reduces->assigned_device_name());
  added->SetStackTrace(from->GetStackTrace());  // errors show the line that computes the predicate
  if (check.is_loop) {
    TF_RETURN_IF_ERROR(graph->UpdateEdge(added, 0, by, 0));
  } else {
    std::vector<std::pair<tensorflow::Node*, int>> followers;
    for (const tensorflow::Edge* edge : by->out_edges()) {
      if (edge->src_output() != check.predicate.port || edge->dst_input() != 1) continue;
      if (!edge->dst()->IsSwitch()) continue;
      followers.emplace_back(edge->dst(), edge->dst_input());
    }
    for (const auto& [node, input] : followers) {
      TF_RETURN_IF_ERROR(graph->UpdateEdge(added, 0, node, input));
    }
  }
  graph->AddEdge(from, check.predicate.port, added, 0);
  return absl::OkStatus();
}

class BranchChecks : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) return absl::OkStatus();
    return AddBranchChecks(options.graph->get());
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 1, BranchChecks);

}  // namespace

absl::Status AddBranchChecks(tensorflow::Graph* graph) {
  bool has_all_reduce = false, has_branch = false;
  std::unordered_map<std::string, tensorflow::Node*> nodes;
  for (tensorflow::Node* const node : graph->op_nodes()) {
    if (node->type_string() == "LibraCheckBranch") return absl::OkStatus();
    has_all_reduce = has_all_reduce || IsAllReduce(node->def());
    has_branch = has_branch || node->IsSwitch();
  }
  if (!has_all_reduce || !has_branch) return absl::OkStatus();
  for (tensorflow::Node* const node : graph->op_nodes()) nodes.emplace(node->name(), node);
  tensorflow::GraphDef def;
  graph->ToGraphDef(&def, /*include_flib_def=*/false);
  std::string reason;
  const std::optional<IndexedGraph> indexed = IndexGraph(def, &reason);
  if (!indexed) return absl::OkStatus();  // TensorFlow itself says what is wrong with it
  const auto is_stateful = [&nodes](const NodeDef& node) {
    const auto found = nodes.find(node.name());
    return found == nodes.end() || found->second->op_def().is_stateful();
  };
  for (const BranchCheck& check : FindBranchChecks(*indexed, is_stateful)) {
    TF_RETURN_IF_ERROR(Insert(check, def.node(check.predicate.node), def.node(check.followed.node),
                              nodes, def.node(check.all_reduce).name(), graph));
  }
  return absl::OkStatus();
}

}  // namespace tf_libra
