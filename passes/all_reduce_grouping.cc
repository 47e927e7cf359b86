#include "passes/all_reduce_grouping.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "passes/context_paths.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_libra {
namespace {

int NodeOf(const Fusion& fusion) { return fusion.members.front()->node; }

// For every node, whether a path leads from there to one of the step that is to be fused.
std::vector<bool> LeadsToStep(const IndexedGraph& graph, const DroppedEdge& dropped,
                              const std::vector<Fusion>& fusions) {
  std::vector<bool> leads(graph.fanins.size(), false);
  for (const Fusion& fusion : fusions) {
    for (const PlannedAllReduce* m : fusion.members) leads[m->node] = !m->out_of_step;
  }
  for (auto node = graph.order.rbegin(); node != graph.order.rend(); ++node) {
    if (!leads[*node]) continue;
    for (const Fanin& fanin : graph.fanins[*node]) {
      if (!dropped(fanin, *node)) leads[fanin.node] = true;
    }
  }
  return leads;
}

// All-reduces outside the order of the groups: one that stays, or those fused in one other branch
// or loop.
struct OutOfStep {
  bool leads;  // whether anything of the step depends on it
  int depth;
  std::string name;
  std::vector<int> nodes;  // one of each all-reduce, in order
};

// The order of all-reduces that the plan prefers, by one node of each.
std::vector<int> PreferredOrder(const IndexedGraph& graph, const std::vector<int>& staying,
                                const DroppedEdge& dropped, const std::vector<Fusion>& fusions) {
  const std::vector<int> depths = Depths(graph, dropped);
  const auto depth_of = [&](const Fusion& fusion) {
    int depth = 0;
    for (const PlannedAllReduce* m : fusion.members) depth = std::max(depth, depths[m->node]);
    return depth;
  };
  const std::vector<bool> leads = LeadsToStep(graph, dropped, fusions);
  std::vector<OutOfStep> others;
  for (const int node : staying) {
    others.push_back({leads[node], depths[node], graph.def->node(node).name(), {node}});
  }
  std::map<int, OutOfStep> by_copy;
  for (const Fusion& fusion : fusions) {
    if (!fusion.members.front()->out_of_step) continue;
    const auto [found, is_new] = by_copy.emplace(fusion.copy, OutOfStep{false, 0, fusion.name, {}});
    OutOfStep& run = found->second;
    for (const PlannedAllReduce* m : fusion.members) run.leads = run.leads || leads[m->node];
    run.depth = std::max(run.depth, depth_of(fusion));
    run.nodes.push_back(NodeOf(fusion));
  }
  for (auto& entry : by_copy) others.push_back(std::move(entry.second));
  // Breaks ties of depth by name, since numbers of nodes may differ between ranks.
  std::sort(others.begin(), others.end(), [](const OutOfStep& a, const OutOfStep& b) {
    return std::make_tuple(!a.leads, a.depth, a.name) < std::make_tuple(!b.leads, b.depth, b.name);
  });
  std::vector<int> preference;
  auto next = others.begin();
  const auto add_next = [&] {
    preference.insert(preference.end(), next->nodes.begin(), next->nodes.end());
    ++next;
  };
  for (const Fusion& fusion : fusions) {
    if (fusion.members.front()->out_of_step) continue;
    const int depth = depth_of(fusion);
    while (next != others.end() && next->leads && next->depth < depth) add_next();
    preference.push_back(NodeOf(fusion));
  }
  while (next != others.end()) add_next();
  return preference;
}

// The last all-reduce of one context so far.
struct Latest {
  size_t position;                 // in the order of all
  std::map<int, size_t> followed;  // context -> the last of its all-reduces that runs before

  bool Follows(int context, size_t other) const {
    const auto found = followed.find(context);
    return found != followed.end() && found->second == other;
  }

  // `earlier`, of `context`, runs before. Those that it follows do, too, if it `runs` whenever this
  // one does.
  void Follow(int context, const Latest& earlier, bool runs) {
    followed[context] = earlier.position;
    if (!runs) return;
    for (const auto& [other, position] : earlier.followed) {
      size_t& own = followed.emplace(other, position).first->second;
      own = std::max(own, position);
    }
  }
};

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

std::vector<Fusion> DecideFusions(const IndexedGraph& graph,
                                  const std::vector<PlannedAllReduce>& marked, ContractedDag* dag,
                                  const NodeNames& names, std::vector<Skipped>* skipped) {
  std::map<std::pair<int, int>, std::vector<const PlannedAllReduce*>> groups;  // (copy, group)
  for (const PlannedAllReduce& m : marked) groups[{m.copy, m.group}].push_back(&m);

  std::vector<Fusion> fusions;
  for (auto& [key, members] : groups) {
    const auto [copy, group] = key;
    std::sort(
        members.begin(), members.end(),
        [](const PlannedAllReduce* a, const PlannedAllReduce* b) { return a->slot < b->slot; });
    std::map<Kind, int> kinds;  // numbered by first appearance
    for (const PlannedAllReduce* m : members) {
      const bool is_new = kinds.emplace(m->kind, static_cast<int>(kinds.size())).second;
      // Rows are never fused, as planned.
      const bool has_rows = !m->kind.rows.empty() || !members[0]->kind.rows.empty();
      if (is_new && kinds.size() > 1 && !has_rows) {
        skipped->push_back({Skipped::Kind::kNode, graph.def->node(m->node).name(),
                            absl::StrCat("group ", group, ": ", ToString(m->kind),
                                         " is not fused with ", ToString(members[0]->kind))});
      }
    }
    // (level, kind) -> members
    std::map<std::pair<int, int>, std::vector<const PlannedAllReduce*>> parts;
    std::vector<std::vector<const PlannedAllReduce*>> by_kind(kinds.size());
    for (const PlannedAllReduce* m : members) {
      by_kind[kinds.at(m->kind)].push_back(m);
    }
    for (size_t kind = 0; kind < by_kind.size(); ++kind) {
      std::vector<int> nodes;
      for (const PlannedAllReduce* m : by_kind[kind]) nodes.push_back(m->node);
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

std::optional<ControlEdges> OrderAllReduces(const IndexedGraph& graph,
                                            const std::vector<int>& staying,
                                            const DroppedEdge& dropped, ContractedDag* dag,
                                            std::vector<Fusion>* fusions,
                                            std::vector<Skipped>* skipped) {
  std::unordered_map<int, size_t> number;  // in `fusions`, by NodeOf
  for (size_t i = 0; i < fusions->size(); ++i) number[NodeOf((*fusions)[i])] = i;
  const auto fusion_of = [&](int node) -> Fusion* {
    const auto found = number.find(node);
    return found == number.end() ? nullptr : &(*fusions)[found->second];
  };
  const std::vector<int> order = dag->OrderOf(PreferredOrder(graph, staying, dropped, *fusions));
  const bool one_context = ShareContext(graph, order);

  ControlEdges waits;
  std::vector<std::vector<int>> fused;
  for (const Fusion& fusion : *fusions) {
    fused.emplace_back();
    for (const PlannedAllReduce* m : fusion.members) fused.back().push_back(m->node);
  }
  std::optional<ContextPaths> paths;
  if (!one_context) paths.emplace(graph, dropped, *dag, fused, order);
  const auto wait = [&](int earlier, int later) {
    const Fusion* before = fusion_of(earlier);
    const std::string name = before == nullptr ? graph.def->node(earlier).name() : before->name;
    Fusion* fusion = fusion_of(later);
    (fusion == nullptr ? waits[later] : fusion->predecessors).push_back(name);
    dag->AddEdge(earlier, later);
    if (paths) paths->Add(earlier, later);
  };

  std::map<int, Latest> latest_of_context;
  std::map<int, const Fusion*> latest_of_copy;  // copy -> what comes last in the plan
  for (size_t i = 0; i < order.size(); ++i) {
    const int node = order[i];
    if (const Fusion* fusion = fusion_of(node); fusion != nullptr) {
      const Fusion*& latest = latest_of_copy[fusion->copy];
      if (latest != nullptr && number.at(node) < number.at(NodeOf(*latest))) {
        skipped->push_back(
            {Skipped::Kind::kNode, fusion->name,
             absl::StrCat("has to run after '", latest->name, "', before which the plan has it")});
      } else {
        latest = fusion;
      }
    }
    const int context = graph.contexts[node];
    Latest latest{i, {}};
    const auto own = latest_of_context.find(context);
    if (own != latest_of_context.end()) {
      wait(order[own->second.position], node);
      latest.Follow(context, own->second, true);
    }
    std::vector<std::pair<size_t, int>> others;  // (position, context)
    for (const auto& [other, state] : latest_of_context) {
      if (other != context) others.emplace_back(state.position, other);
    }
    std::sort(others.rbegin(), others.rend());
    for (const auto& [position, other] : others) {
      const Conditions& needed = graph.conditions[other];
      const Conditions& fulfilled = graph.conditions[context];
      if (latest.Follows(other, position) || Exclude(needed, fulfilled)) continue;
      const std::optional<OrderingEdge> edge = paths->Find(position, i);
      if (!edge) return std::nullopt;
      if (edge->to != OrderingEdge::kNone) wait(edge->from, edge->to);
      latest.Follow(
          other, latest_of_context.at(other),
          std::includes(fulfilled.begin(), fulfilled.end(), needed.begin(), needed.end()));
    }
    latest_of_context[context] = std::move(latest);
  }

  std::vector<Fusion> sorted;
  for (const int node : order) {
    if (Fusion* fusion = fusion_of(node); fusion != nullptr) sorted.push_back(std::move(*fusion));
  }
  *fusions = std::move(sorted);
  return waits;
}

std::vector<Barrier> WaitForBackward(const IndexedGraph& graph, ContractedDag* dag,
                                     const NodeNames& names, std::vector<Fusion>* fusions,
                                     std::vector<Skipped>* skipped) {
  std::map<int, std::vector<Fusion*>> copies;
  for (Fusion& fusion : *fusions) copies[fusion.copy].push_back(&fusion);
  std::vector<Barrier> barriers;
  for (auto& [copy, members] : copies) {
    std::vector<int> ours, producers;
    std::vector<const PlannedAllReduce*> producer_of;
    std::unordered_set<int> seen;
    for (const Fusion* fusion : members) {
      ours.push_back(NodeOf(*fusion));
      for (const PlannedAllReduce* m : fusion->members) {
        const int producer = graph.fanins[m->node][0].node;
        if (!seen.insert(producer).second) continue;
        producers.push_back(producer);
        producer_of.push_back(m);
      }
    }
    const std::vector<bool> later = dag->ReachedFrom(ours, producers);
    const int context = graph.contexts[ours[0]];

    Barrier barrier;
    for (size_t i = 0; i < producers.size(); ++i) {
      const auto skip = [&](const char* reason) {
        skipped->push_back({Skipped::Kind::kTensor, producer_of[i]->tensor, reason});
      };
      if (later[i]) {
        skip("is not waited for by all groups: it depends on one of them");
      } else if (graph.contexts[producers[i]] != context) {
        skip("is not waited for by all groups: it is produced in another branch or loop");
      } else {
        barrier.producers.push_back(producers[i]);
      }
    }
    if (barrier.producers.empty()) continue;
    barrier.name = names.Make("after_backward", copy);
    barrier.device = members[0]->members[0]->kind.device;
    // The others of the copy come behind the first.
    dag->AddEdges(barrier.producers, ours[0]);
    for (Fusion* fusion : members) fusion->predecessors.push_back(barrier.name);
    barriers.push_back(std::move(barrier));
  }
  return barriers;
}

}  // namespace tf_libra
