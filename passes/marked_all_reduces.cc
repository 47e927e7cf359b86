#include "passes/marked_all_reduces.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_libra {
namespace {

using tensorflow::AttrValue;
using tensorflow::GraphDef;
using tensorflow::NodeDef;

constexpr char kAllReduceOp[] = "LibraAllReduce";

// Null if the node is as it should be, else what is wrong with it.
const char* Malformed(const NodeDef& node, const std::vector<Fanin>& fanins) {
  const auto names = node.attr().find("tensor_names");
  if (names == node.attr().end() || names->second.list().s_size() != 1) {
    return "has not exactly one tensor name";
  }
  if (node.attr().find("T") == node.attr().end()) return "has no dtype";
  const auto is_data = [](const Fanin& fanin) { return fanin.port >= 0; };
  if (std::count_if(fanins.begin(), fanins.end(), is_data) != 1) {
    return "has not exactly one data input";
  }
  return nullptr;
}

}  // namespace

bool IsMarked(const NodeDef& node) {
  if (node.op() != kAllReduceOp) return false;
  const auto has = [&node](const char* name, auto matches) {
    const auto attr = node.attr().find(name);
    return attr != node.attr().end() && matches(attr->second);
  };
  return has("N", [](const AttrValue& value) { return value.i() == 1; }) &&
         !has("plan", [](const AttrValue& value) { return !value.s().empty(); }) &&
         !has("group", [](const AttrValue& value) { return value.i() != -1; });
}

bool IsWritten(const NodeDef& node) {
  if (node.op() != kAllReduceOp) return node.attr().count("_tf_libra_group") > 0;
  const auto plan = node.attr().find("plan");
  return plan != node.attr().end() && !plan->second.s().empty();
}

bool HasMarkedAllReduce(const GraphDef& graph) {
  return std::any_of(graph.node().begin(), graph.node().end(), IsMarked);
}

std::vector<int> FindAllReduces(const IndexedGraph& graph) {
  std::vector<int> found;
  for (int i = 0; i < graph.def->node_size(); ++i) {
    if (graph.def->node(i).op() == kAllReduceOp) found.push_back(i);
  }
  std::sort(found.begin(), found.end(), [&graph](int a, int b) {
    return graph.def->node(a).name() < graph.def->node(b).name();
  });
  return found;
}

std::vector<Marked> FindMarked(const IndexedGraph& graph, const RegisteredPlan& plan,
                               const Rewriter& rewriter, const std::unordered_set<std::string>& fed,
                               std::vector<Skipped>* skipped) {
  std::unordered_map<std::string, std::pair<int, int>> place;  // tensor -> group, slot
  for (size_t k = 0; k < plan.groups.size(); ++k) {
    for (const std::string& name : plan.groups[k].tensor_names) {
      place.emplace(name, std::make_pair(static_cast<int>(k), static_cast<int>(place.size())));
    }
  }
  std::vector<Marked> marked;
  for (const int i : graph.order) {
    const NodeDef& node = graph.def->node(i);
    if (!IsMarked(node)) continue;
    const auto skip = [&](std::string reason) {
      skipped->push_back({Skipped::Kind::kNode, node.name(), std::move(reason)});
    };
    if (const char* wrong = Malformed(node, graph.fanins[i])) {
      skip(wrong);
      continue;
    }
    if (fed.count(node.name()) > 0) {
      skip("its output is fed");
      continue;
    }
    const std::string& tensor = node.attr().at("tensor_names").list().s(0);
    const auto found = place.find(tensor);
    if (found == place.end()) {
      skip(absl::StrCat("tensor '", tensor, "' is not in the plan"));
      continue;
    }
    if (std::string refusal = rewriter.Refusal(node); !refusal.empty()) {
      skip(std::move(refusal));
      continue;
    }
    marked.push_back({i, tensor, found->second.first, found->second.second});
  }
  return marked;
}

void ReportMissing(const RegisteredPlan& plan, const std::vector<Marked>& marked,
                   std::vector<Skipped>* skipped) {
  std::map<int, std::unordered_set<std::string>> there;
  for (const Marked& m : marked) there[m.copy].insert(m.tensor);
  for (const auto& [copy, tensors] : there) {
    for (size_t k = 0; k < plan.groups.size(); ++k) {
      for (const std::string& name : plan.groups[k].tensor_names) {
        if (tensors.count(name) > 0) continue;
        skipped->push_back(
            {Skipped::Kind::kTensor, name,
             absl::StrCat("group ", k, ": has no all-reduce in copy ", copy, " of the step")});
      }
    }
  }
}

std::vector<bool> NodesBetween(const IndexedGraph& graph, const std::vector<int>& all_reduces) {
  const size_t size = graph.fanins.size();
  std::vector<bool> after(size, false), before(size, false);
  for (const int node : all_reduces) after[node] = before[node] = true;
  for (const int i : graph.order) {
    for (const Fanin& fanin : graph.fanins[i]) {
      if (after[fanin.node]) after[i] = true;
    }
  }
  for (auto i = graph.order.rbegin(); i != graph.order.rend(); ++i) {
    if (!before[*i]) continue;
    for (const Fanin& fanin : graph.fanins[*i]) before[fanin.node] = true;
  }
  for (size_t i = 0; i < size; ++i) after[i] = after[i] && before[i];
  return after;
}

ContractedDag PathsBetween(const IndexedGraph& graph, const std::vector<bool>& between,
                           const DroppedEdge& dropped) {
  ContractedDag dag(static_cast<int>(graph.fanins.size()));
  for (size_t i = 0; i < graph.fanins.size(); ++i) {
    if (!between[i]) continue;
    for (const Fanin& fanin : graph.fanins[i]) {
      if (between[fanin.node] && !dropped(fanin, i)) dag.AddEdge(fanin.node, static_cast<int>(i));
    }
  }
  return dag;
}

bool ContextsAreApart(const IndexedGraph& graph, const std::vector<int>& all_reduces,
                      const std::vector<bool>& between) {
  std::map<int, std::vector<int>> by_context;
  for (const int node : all_reduces) by_context[graph.contexts[node]].push_back(node);
  if (by_context.size() < 2) return true;
  ContractedDag dag = PathsBetween(graph, between, [](const Fanin&, size_t) { return false; });
  for (const auto& [context, nodes] : by_context) {
    const std::vector<bool> reached = dag.ReachableFrom(nodes);
    for (const int node : all_reduces) {
      if (reached[node] && graph.contexts[node] != context) return false;
    }
  }
  return true;
}

bool FindCopies(const IndexedGraph& graph, const std::vector<bool>& between,
                std::vector<Marked>* marked, std::string* reason) {
  // (context, tensor) -> its all-reduces
  std::map<std::pair<int, std::string>, std::vector<Marked*>> occurrences;
  for (Marked& m : *marked) occurrences[{graph.contexts[m.node], m.tensor}].push_back(&m);

  std::optional<ContractedDag> dag;
  std::map<Marked*, int> nth;
  for (const auto& [key, same_tensor] : occurrences) {
    if (same_tensor.size() == 1) {
      nth[same_tensor[0]] = 0;
      continue;
    }
    if (!dag) dag = PathsBetween(graph, between, [](const Fanin&, size_t) { return false; });
    std::vector<int> nodes;
    for (const Marked* m : same_tensor) nodes.push_back(m->node);
    const std::vector<int> levels = dag->Levels(nodes);
    std::vector<bool> taken(levels.size(), false);
    for (size_t j = 0; j < levels.size(); ++j) {
      if (taken[levels[j]]) {
        *reason = absl::StrCat("tensor '", key.second, "' is reduced more than once, and '",
                               graph.def->node(nodes[j]).name(),
                               "' lies neither before nor after another of its all-reduces");
        return false;
      }
      taken[levels[j]] = true;
      nth[same_tensor[j]] = levels[j];
    }
  }
  // Copies are numbered as they come in the graph.
  std::map<std::pair<int, int>, int> copies;
  for (Marked& m : *marked) {
    const std::pair<int, int> key(graph.contexts[m.node], nth[&m]);
    m.copy = copies.emplace(key, static_cast<int>(copies.size())).first->second;
  }
  return true;
}

}  // namespace tf_libra
