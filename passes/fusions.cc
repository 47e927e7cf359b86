#include "passes/fusions.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {
namespace {

using tensorflow::NodeDef;

// What has to be equal within a fused node: dtype, device, reduction.
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

}  // namespace

NodeNames::NodeNames(const IndexedGraph& graph, const std::string& plan_id)
    : graph_(graph), prefix_("tf_libra/") {
  for (const char c : plan_id) {
    const bool legal = absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-';
    prefix_ += legal ? c : '_';
  }
}

std::string NodeNames::Make(const std::string& what, int copy, int part) const {
  std::string base = absl::StrCat(prefix_, "/", what);
  if (copy > 0) absl::StrAppend(&base, "_copy_", copy);
  if (part > 0) absl::StrAppend(&base, "_part_", part);
  std::string name = base;
  for (int i = 1; graph_.index.count(name) > 0; ++i) name = absl::StrCat(base, "_", i);
  return name;
}

std::vector<Fusion> DecideFusions(const IndexedGraph& graph, const std::vector<Marked>& marked,
                                  ContractedDag* dag, const NodeNames& names,
                                  std::vector<Skipped>* skipped) {
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
                         names.Make(absl::StrCat("group_", group), copy, part++),
                         std::move(entry.second),
                         {}});
    }
  }
  return fusions;
}

std::map<int, std::string> OrderAllReduces(const IndexedGraph& graph,
                                           const std::vector<int>& staying, ContractedDag* dag,
                                           std::vector<Fusion>* fusions,
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

std::vector<Barrier> WaitForBackward(const IndexedGraph& graph, ContractedDag* dag,
                                     const NodeNames& names, std::vector<Fusion>* fusions,
                                     std::vector<Skipped>* skipped) {
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
    barrier.name = names.Make("after_backward", copy);
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

}  // namespace tf_libra
