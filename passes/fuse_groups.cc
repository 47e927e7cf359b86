#include "passes/fuse_groups.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "passes/contracted_dag.h"
#include "passes/control_flow_contexts.h"
#include "tensorflow/core/framework/attr_value_util.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/grappler/op_types.h"
#include "tensorflow/core/grappler/utils/topological_sort.h"

namespace tf_libra {
namespace {

using tensorflow::AttrValue;
using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::TensorId;

constexpr char kMarkedOp[] = "LibraAllReduce";
constexpr char kLocationPrefix[] = "loc:@";

// ---- Reading the graph ----

struct Graph {
  const GraphDef* def = nullptr;
  std::unordered_map<absl::string_view, int> index;
  std::vector<std::vector<Fanin>> fanins;  // without the back edges of loops
  std::vector<int> order;                  // topological
  std::vector<int> contexts;
};

// Nullopt, with the reason, for a graph that is not well-formed.
std::optional<Graph> ReadGraph(const GraphDef& def, std::string* reason) {
  Graph graph;
  graph.def = &def;
  graph.fanins.resize(def.node_size());
  for (int i = 0; i < def.node_size(); ++i) {
    if (!graph.index.emplace(def.node(i).name(), i).second) {
      *reason = absl::StrCat("two nodes have the name '", def.node(i).name(), "'");
      return std::nullopt;
    }
  }
  for (int i = 0; i < def.node_size(); ++i) {
    for (const std::string& input : def.node(i).input()) {
      const TensorId id = tensorflow::ParseTensorName(input);
      const auto found = graph.index.find(id.node());
      if (found == graph.index.end()) {
        *reason = absl::StrCat("'", def.node(i).name(), "' has an input '", input,
                               "' that is not in the graph");
        return std::nullopt;
      }
      if (tensorflow::grappler::IsMerge(def.node(i)) &&
          tensorflow::grappler::IsNextIteration(def.node(found->second))) {
        continue;
      }
      graph.fanins[i].push_back({found->second, id.index()});
    }
  }
  std::vector<const NodeDef*> order;
  const absl::Status status = tensorflow::grappler::ComputeTopologicalOrder(def, &order);
  if (!status.ok()) {
    *reason = absl::StrCat("no topological order: ", status.message());
    return std::nullopt;
  }
  for (const NodeDef* node : order) graph.order.push_back(graph.index.at(node->name()));
  graph.contexts = ControlFlowContexts(def, graph.fanins, graph.order);
  return graph;
}

// ---- Finding what the plan is about ----

// An all-reduce of one gradient that the plan knows.
struct Marked {
  int node;
  std::string tensor;
  int group;
  int slot;  // position of the tensor in the plan
  int copy = 0;
};

bool IsMarked(const NodeDef& node) {
  if (node.op() != kMarkedOp) return false;
  const auto has = [&node](const char* name, auto matches) {
    const auto attr = node.attr().find(name);
    return attr != node.attr().end() && matches(attr->second);
  };
  return has("N", [](const AttrValue& value) { return value.i() == 1; }) &&
         !has("plan", [](const AttrValue& value) { return !value.s().empty(); }) &&
         !has("group", [](const AttrValue& value) { return value.i() != -1; });
}

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

std::vector<Marked> FindMarked(const Graph& graph, const RegisteredPlan& plan,
                               const NodesToKeep& keep, std::vector<Skipped>* skipped) {
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
    if (keep.fed.count(node.name()) > 0) {
      skip("its output is fed");
      continue;
    }
    const std::string& tensor = node.attr().at("tensor_names").list().s(0);
    const auto found = place.find(tensor);
    if (found == place.end()) {
      skip(absl::StrCat("tensor '", tensor, "' is not in the plan"));
      continue;
    }
    marked.push_back({i, tensor, found->second.first, found->second.second});
  }
  return marked;
}

// ---- Paths between all-reduces ----

// For every node, whether it lies on a path between two of `all_reduces`, ends included.
std::vector<bool> NodesBetween(const Graph& graph, const std::vector<int>& all_reduces) {
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

// The part of the graph that paths between all-reduces run through, without the edges that
// `dropped` names.
template <typename Dropped>
ContractedDag PathsBetween(const Graph& graph, const std::vector<bool>& between, Dropped dropped) {
  ContractedDag dag(static_cast<int>(graph.fanins.size()));
  for (size_t i = 0; i < graph.fanins.size(); ++i) {
    if (!between[i]) continue;
    for (const Fanin& fanin : graph.fanins[i]) {
      if (between[fanin.node] && !dropped(fanin, i)) dag.AddEdge(fanin.node, static_cast<int>(i));
    }
  }
  return dag;
}

// False if a path leads from an all-reduce to one in another branch or loop. A control edge cannot
// cross there, so their order could not be kept.
bool ContextsAreApart(const Graph& graph, const std::vector<int>& all_reduces,
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

// Numbers the copies of the step. False, with the reason, where they cannot be told apart.
bool FindCopies(const Graph& graph, const std::vector<bool>& between, std::vector<Marked>* marked,
                std::string* reason) {
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

// ---- Deciding what to fuse ----

// One node to be.
struct Fusion {
  int group;
  int copy;
  std::string name;
  std::vector<const Marked*> members;     // in plan order
  std::vector<std::string> predecessors;  // nodes of ours that it has to wait for
};

// What has to be equal within a fused node.
using Kind = std::tuple<int, std::string, std::string>;

Kind KindOf(const NodeDef& node) {
  const auto reduction = node.attr().find("reduction");
  return {static_cast<int>(node.attr().at("T").type()), node.device(),
          reduction == node.attr().end() ? "average" : reduction->second.s()};
}

std::string ToString(const Kind& kind) {
  return absl::StrCat(
      tensorflow::DataTypeString(static_cast<tensorflow::DataType>(std::get<0>(kind))), ", ",
      std::get<1>(kind).empty() ? "any device" : std::get<1>(kind), ", ", std::get<2>(kind));
}

// Names that no node has yet.
class Names {
 public:
  Names(const Graph& graph, const std::string& plan_id) : graph_(graph), prefix_("tf_libra/") {
    for (const char c : plan_id) {
      const bool legal = absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-';
      prefix_ += legal ? c : '_';
    }
  }

  std::string Make(const std::string& what, int copy, int part = 0) {
    std::string base = absl::StrCat(prefix_, "/", what);
    if (copy > 0) absl::StrAppend(&base, "_copy_", copy);
    if (part > 0) absl::StrAppend(&base, "_part_", part);
    std::string name = base;
    for (int i = 1; graph_.index.count(name) > 0; ++i) name = absl::StrCat(base, "_", i);
    return name;
  }

 private:
  const Graph& graph_;
  std::string prefix_;
};

// Splits each group of each copy into what can be one node, and merges that in `dag`. The result
// is in the order in which it is to run.
std::vector<Fusion> DecideFusions(const Graph& graph, const std::vector<Marked>& marked,
                                  ContractedDag* dag, Names* names, std::vector<Skipped>* skipped) {
  std::map<std::pair<int, int>, std::vector<const Marked*>> groups;  // (copy, group)
  for (const Marked& m : marked) groups[{m.copy, m.group}].push_back(&m);

  std::vector<Fusion> fusions;
  for (auto& [key, members] : groups) {
    const auto [copy, group] = key;
    std::sort(members.begin(), members.end(),
              [](const Marked* a, const Marked* b) { return a->slot < b->slot; });
    std::map<Kind, int> kinds;  // numbered by first appearance
    for (const Marked* m : members) {
      const Kind kind = KindOf(graph.def->node(m->node));
      if (kinds.emplace(kind, static_cast<int>(kinds.size())).second && kinds.size() > 1) {
        skipped->push_back(
            {Skipped::Kind::kNode, graph.def->node(m->node).name(),
             absl::StrCat("group ", group, ": ", ToString(kind), " is not fused with ",
                          ToString(KindOf(graph.def->node(members[0]->node))))});
      }
    }
    // (level, kind) -> members
    std::map<std::pair<int, int>, std::vector<const Marked*>> parts;
    std::vector<std::vector<const Marked*>> by_kind(kinds.size());
    for (const Marked* m : members) {
      by_kind[kinds.at(KindOf(graph.def->node(m->node)))].push_back(m);
    }
    for (size_t kind = 0; kind < by_kind.size(); ++kind) {
      std::vector<int> nodes;
      for (const Marked* m : by_kind[kind]) nodes.push_back(m->node);
      const std::vector<int> levels = nodes.size() == 1 ? std::vector<int>{0} : dag->Levels(nodes);
      std::map<int, std::vector<int>> nodes_of_level;
      for (size_t j = 0; j < nodes.size(); ++j) {
        parts[{levels[j], static_cast<int>(kind)}].push_back(by_kind[kind][j]);
        nodes_of_level[levels[j]].push_back(nodes[j]);
      }
      for (const auto& [level, same_level] : nodes_of_level) {
        if (level == 0) continue;
        const std::vector<int>& previous = nodes_of_level[level - 1];
        const auto blocker = std::find_if(previous.begin(), previous.end(), [&](int node) {
          return dag->Reaches(node, same_level[0]);
        });
        skipped->push_back(
            {Skipped::Kind::kNode, graph.def->node(same_level[0]).name(),
             absl::StrCat(
                 "group ", group, ": not fused with '",
                 graph.def->node(blocker == previous.end() ? previous[0] : *blocker).name(),
                 "', on which it depends")});
      }
      for (const auto& [level, same_level] : nodes_of_level) dag->Contract(same_level);
    }
    int part = 0;
    for (auto& entry : parts) {
      fusions.push_back({group,
                         copy,
                         names->Make(absl::StrCat("group_", group), copy, part++),
                         std::move(entry.second),
                         {}});
    }
  }
  return fusions;
}

// Puts all all-reduces of a context into one chain, those that stay included: engines match them
// across ranks by the order in which they start. The order is that of the plan as far as the graph
// allows it. Returns what has to be waited for by all-reduces that stay.
std::map<int, std::string> OrderAllReduces(const Graph& graph, const std::vector<int>& staying,
                                           ContractedDag* dag, std::vector<Fusion>* fusions,
                                           std::vector<Skipped>* skipped) {
  // What stays goes where its own inputs put it.
  std::vector<int> preference = staying;
  for (const Fusion& fusion : *fusions) preference.push_back(fusion.members[0]->node);
  std::map<int, size_t> rank;
  for (size_t i = 0; i < preference.size(); ++i) rank[preference[i]] = i;

  std::map<int, std::string> waits;
  std::map<int, int> last_of_context;           // context -> node
  std::map<int, const Fusion*> latest_of_copy;  // copy -> what comes last in the plan
  const auto fusion_of = [&](int node) -> Fusion* {
    const size_t i = rank.at(node);
    return i < staying.size() ? nullptr : &(*fusions)[i - staying.size()];
  };
  for (const int node : dag->OrderOf(preference)) {
    Fusion* fusion = fusion_of(node);
    if (fusion != nullptr) {
      const Fusion*& latest = latest_of_copy[fusion->copy];
      if (latest != nullptr && rank.at(node) < rank.at(latest->members[0]->node)) {
        skipped->push_back(
            {Skipped::Kind::kNode, fusion->name,
             absl::StrCat("has to run after '", latest->name, "', before which the plan has it")});
      } else {
        latest = fusion;
      }
    }
    const auto [last, is_first] = last_of_context.emplace(graph.contexts[node], node);
    if (is_first) continue;
    const Fusion* before = fusion_of(last->second);
    const std::string& name =
        before == nullptr ? graph.def->node(last->second).name() : before->name;
    if (fusion != nullptr) {
      fusion->predecessors.push_back(name);
    } else {
      waits[node] = name;
    }
    dag->AddEdge(last->second, node);
    last->second = node;
  }
  return waits;
}

// A NoOp that runs when all gradients of a copy have been produced.
struct Barrier {
  std::string name;
  std::string device;
  std::vector<int> producers;
};

// Makes all nodes of each copy wait for all gradients of that copy.
std::vector<Barrier> WaitForBackward(const Graph& graph, ContractedDag* dag, Names* names,
                                     std::vector<Fusion>* fusions, std::vector<Skipped>* skipped) {
  std::map<int, std::vector<Fusion*>> copies;
  for (Fusion& fusion : *fusions) copies[fusion.copy].push_back(&fusion);
  std::vector<Barrier> barriers;
  for (auto& [copy, members] : copies) {
    std::vector<int> ours;
    for (const Fusion* fusion : members) ours.push_back(fusion->members[0]->node);
    const std::vector<bool> later = dag->ReachableFrom(ours);
    const int context = graph.contexts[ours[0]];

    Barrier barrier;
    std::unordered_set<int> seen;
    for (const Fusion* fusion : members) {
      for (const Marked* m : fusion->members) {
        const int producer = graph.fanins[m->node][0].node;
        if (!seen.insert(producer).second) continue;
        const auto skip = [&](const char* reason) {
          skipped->push_back({Skipped::Kind::kTensor, m->tensor, reason});
        };
        if (later[producer]) {
          skip("is not waited for by all groups: it depends on one of them");
        } else if (graph.contexts[producer] != context) {
          skip("is not waited for by all groups: it is produced in another branch or loop");
        } else {
          barrier.producers.push_back(producer);
        }
      }
    }
    if (barrier.producers.empty()) continue;
    barrier.name = names->Make("after_backward", copy);
    barrier.device = graph.def->node(ours[0]).device();
    const int node = dag->AddNode();
    for (const int producer : barrier.producers) dag->AddEdge(producer, node);
    for (Fusion* fusion : members) {
      dag->AddEdge(node, fusion->members[0]->node);
      fusion->predecessors.push_back(barrier.name);
    }
    barriers.push_back(std::move(barrier));
  }
  return barriers;
}

// ---- Writing the graph ----

// Where the output of a fused all-reduce is to be found.
struct Output {
  const Fusion* fusion;
  int port;
};

class Writer {
 public:
  Writer(const Graph& graph, const std::vector<Fusion>& fusions) : graph_(graph) {
    for (const Fusion& fusion : fusions) {
      int port = 0;
      for (const Marked* m : fusion.members) outputs_[m->node] = {&fusion, port++};
    }
  }

  const Output* Find(int node) const {
    const auto found = outputs_.find(node);
    return found == outputs_.end() ? nullptr : &found->second;
  }

  // An input as it reads after fusing.
  std::string Input(const std::string& input) const {
    const TensorId id = tensorflow::ParseTensorName(input);
    const Output* output = Find(graph_.index.at(id.node()));
    if (output == nullptr) return input;
    if (id.index() == tensorflow::Graph::kControlSlot) return Control(output->fusion->name);
    return Data(*output);
  }

  static std::string Control(const std::string& node) { return absl::StrCat("^", node); }

  static std::string Data(const Output& output) {
    if (output.port == 0) return output.fusion->name;
    return absl::StrCat(output.fusion->name, ":", output.port);
  }

  // A node that stays: its inputs and colocations follow the all-reduces that went.
  void Redirect(const std::unordered_set<std::string>& still_there, NodeDef* node) const {
    bool changed = false;
    std::vector<std::string> inputs;
    for (const std::string& input : node->input()) {
      inputs.push_back(Input(input));
      changed = changed || inputs.back() != input;
    }
    if (changed) {
      node->clear_input();
      AddInputs(inputs, node);
    }
    const auto locations = node->attr().find("_class");
    if (locations == node->attr().end()) return;
    for (std::string& location : *(*node->mutable_attr())["_class"].mutable_list()->mutable_s()) {
      location = Location(location, still_there);
    }
  }

  // The attributes that start with '_', which belong to no op in particular.
  void MergeAttributes(const Fusion& fusion, const std::unordered_set<std::string>& still_there,
                       NodeDef* node) const {
    const NodeDef& first = graph_.def->node(fusion.members[0]->node);
    const auto is_everywhere = [&](const std::string& name, auto matches) {
      return std::all_of(fusion.members.begin(), fusion.members.end(), [&](const Marked* m) {
        const auto& attrs = graph_.def->node(m->node).attr();
        const auto attr = attrs.find(name);
        return attr != attrs.end() && matches(attr->second);
      });
    };
    for (const auto& [name, value] : first.attr()) {
      if (!absl::StartsWith(name, "_") || name == "_class") continue;
      if (name == "_output_shapes") {
        if (!is_everywhere(name, [](const AttrValue& v) { return v.list().shape_size() == 1; })) {
          continue;
        }
        AttrValue shapes;
        for (const Marked* m : fusion.members) {
          *shapes.mutable_list()->add_shape() =
              graph_.def->node(m->node).attr().at(name).list().shape(0);
        }
        (*node->mutable_attr())[name] = shapes;
      } else if (is_everywhere(name, [&v = value](const AttrValue& other) {
                   return tensorflow::AreAttrValuesEqual(v, other);
                 })) {
        (*node->mutable_attr())[name] = value;
      }
    }
    AttrValue locations;
    std::unordered_set<std::string> seen = {absl::StrCat(kLocationPrefix, fusion.name)};
    for (const Marked* m : fusion.members) {
      const auto& attrs = graph_.def->node(m->node).attr();
      const auto attr = attrs.find("_class");
      if (attr == attrs.end()) continue;
      for (const std::string& old : attr->second.list().s()) {
        const std::string location = Location(old, still_there);
        if (seen.insert(location).second) locations.mutable_list()->add_s(location);
      }
    }
    if (locations.list().s_size() > 0) (*node->mutable_attr())["_class"] = locations;
    for (const Marked* m : fusion.members) {
      *node->mutable_experimental_debug_info()->add_original_node_names() =
          graph_.def->node(m->node).name();
    }
  }

  static void AddControlInput(const std::string& from, NodeDef* node) {
    const std::string input = Control(from);
    const auto& inputs = node->input();
    if (std::find(inputs.begin(), inputs.end(), input) == inputs.end()) node->add_input(input);
  }

  // Adds data inputs as they are, and each control input once, behind them.
  static void AddInputs(const std::vector<std::string>& inputs, NodeDef* node) {
    std::unordered_set<std::string> seen;
    for (const std::string& input : inputs) {
      if (!absl::StartsWith(input, "^")) node->add_input(input);
    }
    for (const std::string& input : inputs) {
      if (absl::StartsWith(input, "^") && seen.insert(input).second) node->add_input(input);
    }
  }

 private:
  std::string Location(const std::string& location,
                       const std::unordered_set<std::string>& still_there) const {
    if (!absl::StartsWith(location, kLocationPrefix)) return location;
    const std::string name = location.substr(sizeof(kLocationPrefix) - 1);
    const auto found = graph_.index.find(name);
    if (found == graph_.index.end() || still_there.count(name) > 0) return location;
    const Output* output = Find(found->second);
    return output == nullptr ? location : absl::StrCat(kLocationPrefix, output->fusion->name);
  }

  const Graph& graph_;
  std::unordered_map<int, Output> outputs_;
};

void WriteGraph(const Graph& graph, const RegisteredPlan& plan, const Rewriter& rewriter,
                const NodesToKeep& keep, const std::vector<Fusion>& fusions,
                const std::vector<Barrier>& barriers, const std::map<int, std::string>& waits,
                GraphDef* rewritten, GraphReport* report) {
  const Writer writer(graph, fusions);
  *rewritten->mutable_versions() = graph.def->versions();
  *rewritten->mutable_library() = graph.def->library();
  if (graph.def->has_debug_info()) *rewritten->mutable_debug_info() = graph.def->debug_info();
  for (int i = 0; i < graph.def->node_size(); ++i) {
    const NodeDef& old = graph.def->node(i);
    const Output* output = writer.Find(i);
    if (output == nullptr) {
      NodeDef* node = rewritten->add_node();
      *node = old;
      writer.Redirect(keep.fetched, node);
      const auto wait = waits.find(i);
      if (wait != waits.end()) Writer::AddControlInput(wait->second, node);
    } else if (keep.fetched.count(old.name()) > 0) {
      NodeDef* identity = rewritten->add_node();
      identity->set_name(old.name());
      identity->set_op("Identity");
      identity->set_device(old.device());
      identity->add_input(Writer::Data(*output));
      (*identity->mutable_attr())["T"] = old.attr().at("T");
    }
  }
  for (const Barrier& barrier : barriers) {
    NodeDef* node = rewritten->add_node();
    node->set_name(barrier.name);
    node->set_op("NoOp");
    node->set_device(barrier.device);
    std::vector<std::string> inputs;
    for (const int producer : barrier.producers) {
      inputs.push_back(writer.Input(Writer::Control(graph.def->node(producer).name())));
    }
    Writer::AddInputs(inputs, node);
  }
  for (const Fusion& fusion : fusions) {
    FusedGroup fused{plan, fusion.group, {}, {}};
    std::vector<std::string> inputs;
    for (const Marked* m : fusion.members) {
      const NodeDef& old = graph.def->node(m->node);
      fused.tensor_names.push_back(m->tensor);
      fused.members.push_back(&old);
      for (const std::string& input : old.input()) {
        const TensorId id = tensorflow::ParseTensorName(input);
        const Output* output = writer.Find(graph.index.at(id.node()));
        const bool dropped = id.index() == tensorflow::Graph::kControlSlot && output != nullptr &&
                             output->fusion->copy == fusion.copy;
        if (!dropped) inputs.push_back(writer.Input(input));
      }
    }
    for (const std::string& predecessor : fusion.predecessors) {
      inputs.push_back(Writer::Control(predecessor));
    }
    NodeDef* node = rewritten->add_node();
    node->set_name(fusion.name);
    node->set_device(fused.members[0]->device());
    Writer::AddInputs(inputs, node);
    writer.MergeAttributes(fusion, keep.fetched, node);
    rewriter.Write(fused, node);

    ReportedGroup reported;
    reported.group = fusion.group;
    reported.copy = fusion.copy;
    reported.node = fusion.name;
    reported.num_threads = plan.groups[fusion.group].num_threads;
    reported.dtype = tensorflow::DataTypeString(fused.members[0]->attr().at("T").type());
    for (const std::string& tensor : fused.tensor_names)
      reported.tensors.push_back({tensor, "", 0});
    report->groups.push_back(std::move(reported));
  }
  RefreshReport(*rewritten, report);
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

}  // namespace

bool HasMarkedAllReduce(const GraphDef& graph) {
  return std::any_of(graph.node().begin(), graph.node().end(), IsMarked);
}

bool FuseGroups(const RegisteredPlan& plan, const Rewriter& rewriter, const NodesToKeep& keep,
                const GraphDef& def, GraphDef* rewritten, GraphReport* report) {
  if (!HasMarkedAllReduce(def)) return false;
  std::vector<Skipped>* skipped = &report->skipped;
  const auto give_up = [&](std::string reason) {
    skipped->push_back({Skipped::Kind::kPlan, plan.id, std::move(reason)});
    return false;
  };
  std::string reason;
  const std::optional<Graph> graph = ReadGraph(def, &reason);
  if (!graph) return give_up(std::move(reason));

  std::vector<Marked> marked = FindMarked(*graph, plan, keep, skipped);
  if (marked.empty()) return false;
  // Those of the plan, and those that stay as they are.
  std::vector<int> all_reduces;
  for (int i = 0; i < def.node_size(); ++i) {
    if (def.node(i).op() == kMarkedOp) all_reduces.push_back(i);
  }
  std::sort(all_reduces.begin(), all_reduces.end(),
            [&def](int a, int b) { return def.node(a).name() < def.node(b).name(); });
  const std::vector<bool> between = NodesBetween(*graph, all_reduces);
  if (!ContextsAreApart(*graph, all_reduces, between)) {
    return give_up("all-reduces depend on others in another branch or loop");
  }
  if (!FindCopies(*graph, between, &marked, &reason)) return give_up(std::move(reason));
  ReportMissing(plan, marked, skipped);

  std::vector<int> copy_of(def.node_size(), -1);
  for (const Marked& m : marked) copy_of[m.node] = m.copy;
  ContractedDag dag = PathsBetween(*graph, between, [&](const Fanin& fanin, size_t to) {
    return fanin.port < 0 && copy_of[to] >= 0 && copy_of[fanin.node] == copy_of[to];
  });
  Names names(*graph, plan.id);
  std::vector<Fusion> fusions = DecideFusions(*graph, marked, &dag, &names, skipped);
  std::vector<int> staying;
  for (const int node : all_reduces) {
    if (copy_of[node] < 0) staying.push_back(node);
  }
  const std::map<int, std::string> waits =
      OrderAllReduces(*graph, staying, &dag, &fusions, skipped);
  std::vector<Barrier> barriers;
  if (plan.after_backward) {
    barriers = WaitForBackward(*graph, &dag, &names, &fusions, skipped);
  }

  GraphDef result;
  GraphReport written;
  WriteGraph(*graph, plan, rewriter, keep, fusions, barriers, waits, &result, &written);
  // The steps above close no cycle. Should one of them ever, the graph that was there is right.
  std::vector<const NodeDef*> order;
  const absl::Status status = tensorflow::grappler::ComputeTopologicalOrder(result, &order);
  if (!status.ok()) {
    LOG(ERROR) << "TF-Libra: plan " << plan.id << " closed a cycle: " << status;
    return give_up(absl::StrCat("would have closed a cycle: ", status.message()));
  }
  report->groups = std::move(written.groups);
  *rewritten = std::move(result);
  return true;
}

}  // namespace tf_libra
