#include "passes/fusions.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/grappler/op_types.h"

namespace tf_libra {
namespace {

int NodeOf(const Fusion& fusion) { return fusion.members.front()->node; }

// For every node, the number of nodes on the longest path that leads to it.
std::vector<int> Depths(const IndexedGraph& graph) {
  std::vector<int> depths(graph.fanins.size(), 0);
  for (const int node : graph.order) {
    for (const Fanin& fanin : graph.fanins[node]) {
      depths[node] = std::max(depths[node], depths[fanin.node] + 1);
    }
  }
  return depths;
}

// For every node, whether a path leads from there to one that is to be fused.
std::vector<bool> LeadsToFusion(const IndexedGraph& graph, const DroppedEdge& dropped,
                                const std::vector<Fusion>& fusions) {
  std::vector<bool> leads(graph.fanins.size(), false);
  for (const Fusion& fusion : fusions) {
    for (const Marked* m : fusion.members) leads[m->node] = true;
  }
  for (auto node = graph.order.rbegin(); node != graph.order.rend(); ++node) {
    if (!leads[*node]) continue;
    for (const Fanin& fanin : graph.fanins[*node]) {
      if (!dropped(fanin, *node)) leads[fanin.node] = true;
    }
  }
  return leads;
}

// The order in which all-reduces are wanted, by one node of each.
std::vector<int> Preference(const IndexedGraph& graph, std::vector<int> staying,
                            const DroppedEdge& dropped, const std::vector<Fusion>& fusions) {
  const std::vector<int> depths = Depths(graph);
  const std::vector<bool> leads = LeadsToFusion(graph, dropped, fusions);
  // By name where depths are equal: numbers of nodes may differ between ranks.
  std::stable_sort(staying.begin(), staying.end(), [&](int a, int b) {
    return std::make_tuple(!leads[a], depths[a], graph.def->node(a).name()) <
           std::make_tuple(!leads[b], depths[b], graph.def->node(b).name());
  });
  std::vector<int> preference;
  auto next = staying.begin();
  for (const Fusion& fusion : fusions) {
    int depth = 0;
    for (const Marked* m : fusion.members) depth = std::max(depth, depths[m->node]);
    for (; next != staying.end() && leads[*next] && depths[*next] < depth; ++next) {
      preference.push_back(*next);
    }
    preference.push_back(NodeOf(fusion));
  }
  preference.insert(preference.end(), next, staying.end());
  return preference;
}

// The graph with what is to be fused as one node, and with the waits that were added: what a node
// waits for.
class Waiting {
 public:
  Waiting(const IndexedGraph& graph, const DroppedEdge& dropped, const std::vector<Fusion>& fusions)
      : graph_(graph), dropped_(dropped) {
    for (const Fusion& fusion : fusions) {
      for (const Marked* m : fusion.members) fusion_of_[m->node] = &fusion;
    }
  }

  void Add(int from, int to) { added_[to].push_back(from); }

  // All nodes that lead to one of `nodes`, those included.
  std::unordered_set<int> LeadingTo(const std::vector<int>& nodes) const {
    std::unordered_set<int> seen;
    std::vector<int> pending;
    Push(nodes, &seen, &pending);
    while (!pending.empty()) {
      const int node = pending.back();
      pending.pop_back();
      Push(Fanins(node, [](const Fanin&) { return true; }), &seen, &pending);
    }
    return seen;
  }

  // Where branches and loops end into `context`, behind `node`.
  std::vector<int> EndsBehind(int node, int context) const {
    std::vector<int> ends;
    std::vector<bool> reached(graph_.fanins.size(), false);
    const auto fusion = fusion_of_.find(node);
    reached[node] = true;
    if (fusion != fusion_of_.end()) {
      for (const Marked* m : fusion->second->members) reached[m->node] = true;
    }
    for (const int next : graph_.order) {
      for (const Fanin& fanin : graph_.fanins[next]) {
        if (reached[fanin.node] && !dropped_(fanin, next)) reached[next] = true;
      }
      const tensorflow::NodeDef& def = graph_.def->node(next);
      const bool is_end = tensorflow::grappler::IsMerge(def) || tensorflow::grappler::IsExit(def);
      if (reached[next] && is_end && graph_.contexts[next] == context) ends.push_back(next);
    }
    return ends;
  }

  // The nodes of `context` that `node` waits for whatever else runs, the nearest first.
  std::vector<int> WaitedFor(int node, int context) const {
    std::unordered_set<int> seen;
    std::vector<int> pending, found;
    Push({node}, &seen, &pending);
    for (size_t i = 0; i < pending.size(); ++i) {
      if (graph_.contexts[pending[i]] == context) found.push_back(pending[i]);
      // A Merge waits for one of its inputs: that of `context`, if it is from there.
      const bool is_merge = tensorflow::grappler::IsMerge(graph_.def->node(pending[i])) &&
                            graph_.fanins[pending[i]].size() > 1;
      const std::vector<int> fanins = Fanins(pending[i], [&](const Fanin& fanin) {
        return !is_merge || fanin.port < 0 || graph_.contexts[fanin.node] == context;
      });
      Push(fanins, &seen, &pending);
    }
    return found;
  }

 private:
  static void Push(const std::vector<int>& nodes, std::unordered_set<int>* seen,
                   std::vector<int>* pending) {
    for (const int node : nodes) {
      if (seen->insert(node).second) pending->push_back(node);
    }
  }

  // The other parts of what `node` is fused into count among what it waits for.
  template <typename Counts>
  std::vector<int> Fanins(int node, Counts counts) const {
    std::vector<int> fanins;
    for (const Fanin& fanin : graph_.fanins[node]) {
      if (counts(fanin) && !dropped_(fanin, node)) fanins.push_back(fanin.node);
    }
    const auto fusion = fusion_of_.find(node);
    if (fusion != fusion_of_.end()) {
      for (const Marked* m : fusion->second->members) fanins.push_back(m->node);
    }
    const auto added = added_.find(node);
    if (added != added_.end()) {
      fanins.insert(fanins.end(), added->second.begin(), added->second.end());
    }
    return fanins;
  }

  const IndexedGraph& graph_;
  const DroppedEdge& dropped_;
  std::unordered_map<int, const Fusion*> fusion_of_;
  std::unordered_map<int, std::vector<int>> added_;
};

// A node that may get a control input: one that runs in the frame of what feeds it, and is no input
// of the graph.
bool CanWait(const tensorflow::NodeDef& node) {
  return !tensorflow::grappler::ModifiesFrameInfo(node) &&
         !tensorflow::grappler::IsPlaceholder(node) && !tensorflow::grappler::IsMerge(node) &&
         node.op() != "_Arg" && node.op() != "LibraAllReduce";
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
      if (kinds.emplace(m->kind, static_cast<int>(kinds.size())).second && kinds.size() > 1) {
        skipped->push_back({Skipped::Kind::kNode, graph.def->node(m->node).name(),
                            absl::StrCat("group ", group, ": ", ToString(m->kind),
                                         " is not fused with ", ToString(members[0]->kind))});
      }
    }
    // (level, kind) -> members
    std::map<std::pair<int, int>, std::vector<const Marked*>> parts;
    std::vector<std::vector<const Marked*>> by_kind(kinds.size());
    for (const Marked* m : members) {
      by_kind[kinds.at(m->kind)].push_back(m);
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

Waits OrderAllReduces(const IndexedGraph& graph, const std::vector<int>& staying,
                      const DroppedEdge& dropped, ContractedDag* dag, std::vector<Fusion>* fusions,
                      std::vector<Skipped>* skipped) {
  std::unordered_map<int, size_t> number;  // in `fusions`, by NodeOf
  for (size_t i = 0; i < fusions->size(); ++i) number[NodeOf((*fusions)[i])] = i;
  const auto fusion_of = [&](int node) -> Fusion* {
    const auto found = number.find(node);
    return found == number.end() ? nullptr : &(*fusions)[found->second];
  };
  const std::vector<int> order = dag->OrderOf(Preference(graph, staying, dropped, *fusions));
  const bool one_context = ShareContext(graph, order);

  Waits waits;
  Waiting waiting(graph, dropped, *fusions);
  const auto wait = [&](int earlier, int later) {
    const Fusion* before = fusion_of(earlier);
    const std::string name = before == nullptr ? graph.def->node(earlier).name() : before->name;
    Fusion* fusion = fusion_of(later);
    (fusion == nullptr ? waits[later] : fusion->predecessors).push_back(name);
    dag->AddEdge(earlier, later);
    waiting.Add(earlier, later);
  };
  // In different contexts: something of the earlier one's context on the way to the later one
  // waits.
  const auto wait_across = [&](size_t earlier, int later) {
    const int from = order[earlier];
    const std::vector<int> candidates = waiting.WaitedFor(later, graph.contexts[from]);
    if (std::find(candidates.begin(), candidates.end(), from) != candidates.end()) return;
    // Nothing that must run before may wait.
    const std::unordered_set<int> before =
        waiting.LeadingTo({order.begin(), order.begin() + earlier + 1});
    for (const int candidate : candidates) {
      if (before.count(candidate) > 0 || !CanWait(graph.def->node(candidate))) continue;
      wait(from, candidate);
      return;
    }
    for (const int end : waiting.EndsBehind(from, graph.contexts[later])) {
      const std::unordered_set<int> leading = waiting.LeadingTo({end});
      const bool is_free = std::none_of(order.begin() + earlier + 1, order.end(),
                                        [&](int node) { return leading.count(node) > 0; });
      if (!is_free) continue;
      wait(end, later);
      return;
    }
  };

  std::map<int, size_t> last_of_context;        // context -> position in `order`
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
    const auto own = last_of_context.find(context);
    if (own != last_of_context.end()) wait(order[own->second], node);
    if (!one_context) {
      for (const auto& [other, position] : last_of_context) {
        const bool is_new = own == last_of_context.end() || position > own->second;
        if (other != context && is_new) wait_across(position, node);
      }
    }
    last_of_context[context] = i;
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
    std::vector<const Marked*> producer_of;
    std::unordered_set<int> seen;
    for (const Fusion* fusion : members) {
      ours.push_back(NodeOf(*fusion));
      for (const Marked* m : fusion->members) {
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
