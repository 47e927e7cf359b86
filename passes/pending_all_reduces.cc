#include "passes/pending_all_reduces.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {
namespace {

using tensorflow::AttrValue;
using tensorflow::GraphDef;
using tensorflow::NodeDef;

constexpr char kAllReduceOp[] = "LibraAllReduce";
constexpr char kStartOp[] = "LibraAllReduceStart";  // of one that was written

// Null if the node is as it should be, else what is wrong with it.
const char* Malformed(const NodeDef& node, const std::vector<Fanin>& fanins) {
  const auto names = node.attr().find("tensor_names");
  if (names == node.attr().end() || names->second.list().s_size() != 1) {
    return "has not exactly one tensor name";
  }
  if (node.attr().find("T") == node.attr().end()) return "has no dtype";
  const auto is_data = [](const Fanin& fanin) { return fanin.port >= 0; };
  const auto ends = node.attr().find("E");
  const int64_t num_ends = ends == node.attr().end() ? 0 : ends->second.i();
  if (std::count_if(fanins.begin(), fanins.end(), is_data) != 1 + num_ends) {
    return "has not exactly one data input";
  }
  return nullptr;
}

// The node that computes what the all-reduce `node` reduces.
int DataFanin(const IndexedGraph& graph, int node) {
  const std::vector<Fanin>& fanins = graph.fanins[node];
  return std::find_if(fanins.begin(), fanins.end(),
                      [](const Fanin& fanin) { return fanin.port >= 0; })
      ->node;
}

// An attribute that has its default may have been stripped.
std::string TextAttribute(const NodeDef& node, const char* name, const char* otherwise) {
  const auto found = node.attr().find(name);
  return found == node.attr().end() ? otherwise : found->second.s();
}

Kind KindOf(const NodeDef& node, std::string device) {
  return {node.attr().at("T").type(), std::move(device),
          TextAttribute(node, "reduction", "average"), TextAttribute(node, "function", ""),
          HasRowsOfRanks(node) ? node.attr().at("tensor_names").list().s(0) : ""};
}

constexpr int kBatch = 32;

// Returns the levels of the all-reduces of up to kBatch tensors together: how many of the same
// tensor lie on a path before each. `batch[j]` are those of tensor j; so are the levels that are
// returned.
std::vector<std::vector<int>> LevelsOfTensors(const IndexedGraph& graph,
                                              const std::vector<bool>& between,
                                              const std::vector<std::vector<int>>& batch) {
  using Depths = std::array<int32_t, kBatch>;
  std::vector<int> tensor_of(graph.fanins.size(), -1);
  for (size_t j = 0; j < batch.size(); ++j) {
    for (const int node : batch[j]) tensor_of[node] = static_cast<int>(j);
  }
  std::vector<Depths> depths(graph.fanins.size(), Depths{});
  for (const int node : graph.order) {
    if (!between[node]) continue;
    Depths& own = depths[node];
    for (const Fanin& fanin : graph.fanins[node]) {
      if (!between[fanin.node]) continue;
      Depths from = depths[fanin.node];
      if (tensor_of[fanin.node] >= 0) ++from[tensor_of[fanin.node]];
      for (int j = 0; j < kBatch; ++j) own[j] = std::max(own[j], from[j]);
    }
  }
  std::vector<std::vector<int>> levels(batch.size());
  for (size_t j = 0; j < batch.size(); ++j) {
    for (const int node : batch[j]) levels[j].push_back(depths[node][j]);
  }
  return levels;
}

}  // namespace

bool Kind::operator<(const Kind& other) const {
  return std::tie(dtype, device, reduction, function, rows) <
         std::tie(other.dtype, other.device, other.reduction, other.function, other.rows);
}

std::string ToString(const Kind& kind) {
  return absl::StrCat(tensorflow::DataTypeString(kind.dtype), ", ",
                      kind.device.empty() ? "any device" : kind.device, ", ", kind.reduction,
                      kind.function.empty() ? "" : absl::StrCat(", of ", kind.function),
                      kind.rows.empty() ? "" : absl::StrCat(", rows of ", kind.rows));
}

bool IsPendingAllReduce(const NodeDef& node) {
  if (node.op() != kAllReduceOp) return false;
  const auto has = [&node](const char* name, auto matches) {
    const auto attr = node.attr().find(name);
    return attr != node.attr().end() && matches(attr->second);
  };
  return has("N", [](const AttrValue& value) { return value.i() == 1; }) &&
         !has("plan", [](const AttrValue& value) { return !value.s().empty(); }) &&
         !has("group", [](const AttrValue& value) { return value.i() != -1; });
}

int64_t PartStart(const NodeDef& node) {
  const auto starts = node.attr().find("part_starts");
  const bool has_one = starts != node.attr().end() && starts->second.list().i_size() == 1;
  return has_one ? starts->second.list().i(0) : kWholeTensor;
}

bool HasRowsOfRanks(const NodeDef& node) {
  const auto ends = node.attr().find("E");
  return ends != node.attr().end() && ends->second.i() > 0;
}

bool IsWritten(const NodeDef& node) {
  if (node.op() == kStartOp) return true;
  if (node.op() != kAllReduceOp) return node.attr().count("_tf_libra_group") > 0;
  // Rows that are gathered name something in place of a plan, and are in no group.
  const auto group = node.attr().find("group");
  return group != node.attr().end() && group->second.i() >= 0;
}

bool HasPendingAllReduce(const GraphDef& graph) {
  return std::any_of(graph.node().begin(), graph.node().end(), IsPendingAllReduce);
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

std::vector<PlannedAllReduce> FindPlannedAllReduces(const IndexedGraph& graph,
                                                    const RegisteredPlan& plan,
                                                    const Rewriter& rewriter,
                                                    const std::unordered_set<std::string>& fed,
                                                    std::vector<Skipped>* skipped) {
  using Part = std::pair<std::string, int64_t>;  // tensor, where it begins
  std::map<Part, std::pair<int, int>> slots;     // -> group, slot
  for (size_t k = 0; k < plan.groups.size(); ++k) {
    const PlanGroup& group = plan.groups[k];
    for (size_t i = 0; i < group.tensor_names.size(); ++i) {
      const int64_t start = group.part_starts.empty() ? kWholeTensor : group.part_starts[i];
      slots.emplace(Part(group.tensor_names[i], start),
                    std::make_pair(static_cast<int>(k), static_cast<int>(slots.size())));
    }
  }
  std::vector<PlannedAllReduce> marked;
  for (const int i : graph.order) {
    const NodeDef& node = graph.def->node(i);
    if (!IsPendingAllReduce(node)) continue;
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
    const auto found = slots.find({tensor, PartStart(node)});
    if (found == slots.end()) {
      skip(absl::StrCat("tensor '", tensor, "' is not in the plan"));
      continue;
    }
    if (std::string refusal = rewriter.Refusal(node); !refusal.empty()) {
      skip(std::move(refusal));
      continue;
    }
    const NodeDef& producer = graph.def->node(DataFanin(graph, i));
    marked.push_back({i, tensor, found->second.first, found->second.second,
                      KindOf(node, rewriter.Device(node, producer.device()))});
  }
  return marked;
}

void ReportMissing(const IndexedGraph& graph, const RegisteredPlan& plan,
                   const std::vector<PlannedAllReduce>& marked, std::vector<Skipped>* skipped) {
  std::unordered_set<std::string> in_graph;
  std::map<int, std::set<std::string>> in_context;
  std::map<int, std::set<std::string>> in_copy;
  std::map<int, int> context_of;  // of a copy
  for (const PlannedAllReduce& m : marked) {
    in_graph.insert(m.tensor);
    in_context[graph.contexts[m.node]].insert(m.tensor);
    in_copy[m.copy].insert(m.tensor);
    context_of[m.copy] = graph.contexts[m.node];
  }
  // A copy that is alone in its context lacks nothing that others there have.
  std::map<int, int> num_copies;  // of a context
  for (const auto& [copy, context] : context_of) ++num_copies[context];
  std::vector<int> with_others;
  for (const auto& [copy, context] : context_of) {
    if (num_copies[context] > 1) with_others.push_back(copy);
  }
  for (size_t k = 0; k < plan.groups.size(); ++k) {
    for (const std::string& name : plan.groups[k].tensor_names) {
      const auto skip = [&](const std::string& reason) {
        skipped->push_back({Skipped::Kind::kTensor, name, absl::StrCat("group ", k, ": ", reason)});
      };
      if (in_graph.count(name) == 0) {
        skip("has no all-reduce");
        continue;
      }
      for (const int copy : with_others) {
        if (in_copy[copy].count(name) == 0 && in_context[context_of[copy]].count(name) > 0) {
          skip(absl::StrCat("has no all-reduce in copy ", copy, " of the step"));
        }
      }
    }
  }
}

std::vector<int> Depths(const IndexedGraph& graph, const DroppedEdge& dropped) {
  std::vector<int> depths(graph.fanins.size(), 0);
  for (const int node : graph.order) {
    for (const Fanin& fanin : graph.fanins[node]) {
      if (dropped(fanin, node)) continue;
      depths[node] = std::max(depths[node], depths[fanin.node] + 1);
    }
  }
  return depths;
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
  ContractedDag dag(graph.order);
  for (const int node : graph.order) {
    if (!between[node]) continue;
    for (const Fanin& fanin : graph.fanins[node]) {
      if (between[fanin.node] && !dropped(fanin, node)) dag.AddEdge(fanin.node, node);
    }
  }
  return dag;
}

bool ShareContext(const IndexedGraph& graph, const std::vector<int>& nodes) {
  return std::all_of(nodes.begin(), nodes.end(), [&](int node) {
    return graph.contexts[node] == graph.contexts[nodes.front()];
  });
}

void FindOutOfStep(const IndexedGraph& graph, std::vector<PlannedAllReduce>* marked) {
  struct Context {
    std::set<std::string> tensors;
    int size = 0;
    int first_slot = 0;
  };
  std::map<int, Context> contexts;
  for (const PlannedAllReduce& m : *marked) {
    Context& context = contexts[graph.contexts[m.node]];
    context.first_slot = context.size == 0 ? m.slot : std::min(context.first_slot, m.slot);
    context.tensors.insert(m.tensor);
    ++context.size;
  }
  std::vector<std::pair<int, const Context*>> by_size;
  for (const auto& [number, context] : contexts) by_size.emplace_back(number, &context);
  std::sort(by_size.begin(), by_size.end(), [](const auto& a, const auto& b) {
    return std::make_tuple(-a.second->size, a.second->first_slot) <
           std::make_tuple(-b.second->size, b.second->first_slot);
  });
  std::set<std::string> of_step;
  std::set<int> out_of_step;
  for (const auto& [number, context] : by_size) {
    const bool is_copy =
        of_step.empty() || std::any_of(context->tensors.begin(), context->tensors.end(),
                                       [&](const auto& name) { return of_step.count(name) > 0; });
    if (is_copy) {
      of_step.insert(context->tensors.begin(), context->tensors.end());
    } else {
      out_of_step.insert(number);
    }
  }
  for (PlannedAllReduce& m : *marked) m.out_of_step = out_of_step.count(graph.contexts[m.node]) > 0;
}

bool FindCopies(const IndexedGraph& graph, const std::vector<bool>& between,
                std::vector<PlannedAllReduce>* marked, std::string* reason) {
  // All-reduces of a copy by tensor or part: (context, function, slot) -> its all-reduces.
  std::map<std::tuple<int, std::string, int>, std::vector<PlannedAllReduce*>> occurrences;
  for (PlannedAllReduce& m : *marked) {
    occurrences[{graph.contexts[m.node], m.kind.function, m.slot}].push_back(&m);
  }
  std::vector<const std::vector<PlannedAllReduce*>*> repeated;
  for (const auto& entry : occurrences) {
    if (entry.second.size() > 1) repeated.push_back(&entry.second);
  }
  std::unordered_map<const PlannedAllReduce*, int> nth;
  for (size_t first = 0; first < repeated.size(); first += kBatch) {
    std::vector<std::vector<int>> batch;
    for (size_t j = first; j < std::min(first + kBatch, repeated.size()); ++j) {
      batch.emplace_back();
      for (const PlannedAllReduce* m : *repeated[j]) batch.back().push_back(m->node);
    }
    const std::vector<std::vector<int>> levels = LevelsOfTensors(graph, between, batch);
    for (size_t j = 0; j < batch.size(); ++j) {
      std::vector<bool> taken(batch[j].size(), false);
      for (size_t i = 0; i < batch[j].size(); ++i) {
        const PlannedAllReduce* m = (*repeated[first + j])[i];
        if (taken[levels[j][i]]) {
          *reason = absl::StrCat("tensor '", m->tensor, "' is reduced more than once, and '",
                                 graph.def->node(m->node).name(),
                                 "' lies neither before nor after another of its all-reduces");
          return false;
        }
        taken[levels[j][i]] = true;
        nth[m] = levels[j][i];
      }
    }
  }
  // Copies are numbered as they come, by what does not depend on the numbers of nodes.
  const std::vector<int> depths = Depths(graph, [](const Fanin&, int) { return false; });
  struct Copy {
    bool out_of_step = false;
    int depth = 0;
    int slot = 0;
    std::string name;  // of the all-reduce of that slot
    std::vector<PlannedAllReduce*> members;
  };
  std::map<std::tuple<int, std::string, int>, Copy> copies;
  for (PlannedAllReduce& m : *marked) {
    Copy& copy = copies[{graph.contexts[m.node], m.kind.function, nth[&m]}];
    const bool is_first = copy.members.empty();
    copy.out_of_step = m.out_of_step;
    copy.depth = is_first ? depths[m.node] : std::min(copy.depth, depths[m.node]);
    if (is_first || m.slot < copy.slot) {
      copy.slot = m.slot;
      copy.name = graph.def->node(m.node).name();
    }
    copy.members.push_back(&m);
  }
  std::vector<const Copy*> in_order;
  for (const auto& entry : copies) in_order.push_back(&entry.second);
  std::sort(in_order.begin(), in_order.end(), [](const Copy* a, const Copy* b) {
    return std::tie(a->out_of_step, a->depth, a->slot, a->name) <
           std::tie(b->out_of_step, b->depth, b->slot, b->name);
  });
  for (size_t number = 0; number < in_order.size(); ++number) {
    for (PlannedAllReduce* m : in_order[number]->members) m->copy = static_cast<int>(number);
  }
  return true;
}

}  // namespace tf_libra
