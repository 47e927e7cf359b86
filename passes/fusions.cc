#include "passes/fusions.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/grappler/op_types.h"

namespace tf_libra {
namespace {

int NodeOf(const Fusion& fusion) { return fusion.members.front()->node; }

// For every node, whether a path leads from there to one of the step that is to be fused.
std::vector<bool> LeadsToStep(const IndexedGraph& graph, const DroppedEdge& dropped,
                              const std::vector<Fusion>& fusions) {
  std::vector<bool> leads(graph.fanins.size(), false);
  for (const Fusion& fusion : fusions) {
    for (const Marked* m : fusion.members) leads[m->node] = !m->aside;
  }
  for (auto node = graph.order.rbegin(); node != graph.order.rend(); ++node) {
    if (!leads[*node]) continue;
    for (const Fanin& fanin : graph.fanins[*node]) {
      if (!dropped(fanin, *node)) leads[fanin.node] = true;
    }
  }
  return leads;
}

// All-reduces that have no place among the groups of the step: one that stays, or what is fused
// aside in one branch or loop.
struct Aside {
  bool leads;  // whether anything of the step depends on it
  int depth;
  std::string name;
  std::vector<int> nodes;  // one of each all-reduce, in order
};

// The order in which all-reduces are wanted, by one node of each.
std::vector<int> Preference(const IndexedGraph& graph, const std::vector<int>& staying,
                            const DroppedEdge& dropped, const std::vector<Fusion>& fusions) {
  const std::vector<int> depths = Depths(graph);
  const auto depth_of = [&](const Fusion& fusion) {
    int depth = 0;
    for (const Marked* m : fusion.members) depth = std::max(depth, depths[m->node]);
    return depth;
  };
  const std::vector<bool> leads = LeadsToStep(graph, dropped, fusions);
  std::vector<Aside> others;
  for (const int node : staying) {
    others.push_back({leads[node], depths[node], graph.def->node(node).name(), {node}});
  }
  std::map<int, Aside> by_copy;
  for (const Fusion& fusion : fusions) {
    if (!fusion.members.front()->aside) continue;
    const auto [found, is_new] = by_copy.emplace(fusion.copy, Aside{false, 0, fusion.name, {}});
    Aside& aside = found->second;
    for (const Marked* m : fusion.members) aside.leads = aside.leads || leads[m->node];
    aside.depth = std::max(aside.depth, depth_of(fusion));
    aside.nodes.push_back(NodeOf(fusion));
  }
  for (auto& entry : by_copy) others.push_back(std::move(entry.second));
  // By name where depths are equal: numbers of nodes may differ between ranks.
  std::sort(others.begin(), others.end(), [](const Aside& a, const Aside& b) {
    return std::make_tuple(!a.leads, a.depth, a.name) < std::make_tuple(!b.leads, b.depth, b.name);
  });
  std::vector<int> preference;
  auto next = others.begin();
  const auto add_next = [&] {
    preference.insert(preference.end(), next->nodes.begin(), next->nodes.end());
    ++next;
  };
  for (const Fusion& fusion : fusions) {
    if (fusion.members.front()->aside) continue;
    const int depth = depth_of(fusion);
    while (next != others.end() && next->leads && next->depth < depth) add_next();
    preference.push_back(NodeOf(fusion));
  }
  while (next != others.end()) add_next();
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

  // Where branches and loops end into `context`, and wait for `node` if that runs.
  std::vector<int> EndsBehind(int node, const Conditions& context) const {
    const Conditions& given = graph_.conditions[graph_.contexts[node]];
    std::unordered_set<int> seen;
    std::vector<int> pending, ends;
    Push({node}, &seen, &pending);
    const auto fusion = fusion_of_.find(node);
    if (fusion != fusion_of_.end()) {
      for (const Marked* m : fusion->second->members) Push({m->node}, &seen, &pending);
    }
    for (size_t i = 0; i < pending.size(); ++i) {
      const tensorflow::NodeDef& def = graph_.def->node(pending[i]);
      const bool is_end = tensorflow::grappler::IsMerge(def) || tensorflow::grappler::IsExit(def);
      if (is_end && graph_.conditions[graph_.contexts[pending[i]]] == context) {
        ends.push_back(pending[i]);
      }
      for (const int next : Fanouts(pending[i], given)) Push({next}, &seen, &pending);
    }
    return ends;
  }

  // The nodes with inputs of `context` that `node` waits for whatever else runs, the nearest first.
  std::vector<int> WaitedFor(int node, const Conditions& context) const {
    std::unordered_set<int> seen;
    std::vector<int> pending, found;
    Push({node}, &seen, &pending);
    for (size_t i = 0; i < pending.size(); ++i) {
      const int from = pending[i];
      if (graph_.conditions[graph_.input_contexts[from]] == context) found.push_back(from);
      const std::vector<int> fanins = Fanins(from, [&](const Fanin& fanin) {
        // An Exit leaves before other values of the loop have (loop_frames.h takes them for one).
        const bool is_exit = tensorflow::grappler::IsExit(graph_.def->node(from));
        if (fanin.port == kOnceMerged || (is_exit && fanin.port < 0)) return false;
        return !IsChoice(from) || fanin.port < 0 || IsTaken(fanin.node, context);
      });
      Push(fanins, &seen, &pending);
    }
    return found;
  }

 private:
  // What waits for `node` under the conditions `given`, in later iterations, too.
  std::vector<int> Fanouts(int node, const Conditions& given) const {
    if (fanouts_.empty()) fanouts_ = AllFanouts();
    std::vector<int> fanouts;
    for (const auto& [next, port] : fanouts_[node]) {
      if (dropped_({node, port}, next)) continue;
      // A Merge waits for the branch that was taken.
      if (IsChoice(next) && port >= 0 && !IsTaken(node, given)) continue;
      fanouts.push_back(next);
    }
    return fanouts;
  }

  std::vector<std::vector<Fanin>> AllFanouts() const {
    std::vector<std::vector<Fanin>> fanouts(graph_.fanins.size());
    for (int next = 0; next < graph_.def->node_size(); ++next) {
      const tensorflow::NodeDef& def = graph_.def->node(next);
      for (const std::string& input : def.input()) {
        const tensorflow::TensorId id = tensorflow::ParseTensorName(input);
        fanouts[graph_.index.at(id.node())].push_back({next, id.index()});
      }
    }
    return fanouts;
  }

  // Whether it waits for one of its inputs.
  bool IsChoice(int node) const {
    return tensorflow::grappler::IsMerge(graph_.def->node(node)) && graph_.fanins[node].size() > 1;
  }

  // Whether a data input of a Merge is there under the conditions `given`.
  bool IsTaken(int fanin, const Conditions& given) const {
    if (tensorflow::grappler::IsSwitch(graph_.def->node(fanin))) return false;  // one of its ports
    const Conditions& needed = graph_.conditions[graph_.contexts[fanin]];
    return std::includes(given.begin(), given.end(), needed.begin(), needed.end());
  }

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
  mutable std::vector<std::vector<Fanin>> fanouts_;  // made when asked for
};

// A node that may get a control input from the context of its inputs: no input of the graph, and
// nothing that control flow is made of but where it begins.
bool CanWait(const tensorflow::NodeDef& node) {
  if (tensorflow::grappler::IsEnter(node)) return true;
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

std::optional<Waits> OrderAllReduces(const IndexedGraph& graph, const std::vector<int>& staying,
                                     const DroppedEdge& dropped, ContractedDag* dag,
                                     std::vector<Fusion>* fusions, std::vector<Skipped>* skipped) {
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
  // In different contexts: what is on the way to the later one waits for where the earlier one's
  // branch or loop ends, in the context that both are in. False where there is no such edge.
  const auto wait_across = [&](size_t earlier, size_t later) {
    const Conditions& of_earlier = graph.conditions[graph.contexts[order[earlier]]];
    const Conditions& of_later = graph.conditions[graph.contexts[order[later]]];
    const Conditions common = Common(of_earlier, of_later);
    std::vector<int> ends = {order[earlier]};
    if (common != of_earlier) ends = waiting.EndsBehind(order[earlier], common);
    for (const int end : ends) {
      // Nothing that must run before may wait.
      std::vector<int> done(order.begin(), order.begin() + earlier + 1);
      done.push_back(end);
      const std::unordered_set<int> before = waiting.LeadingTo(done);
      if (std::any_of(order.begin() + later, order.end(),
                      [&](int node) { return before.count(node) > 0; })) {
        continue;
      }
      if (common == of_later) {
        wait(end, order[later]);
        return true;
      }
      const std::vector<int> candidates = waiting.WaitedFor(order[later], common);
      if (std::find(candidates.begin(), candidates.end(), end) != candidates.end()) return true;
      for (const int candidate : candidates) {
        if (before.count(candidate) > 0 || !CanWait(graph.def->node(candidate))) continue;
        wait(end, candidate);
        return true;
      }
      if (IsBranchOf(of_later, common)) {  // which may wait for what is outside
        wait(end, order[later]);
        return true;
      }
    }
    return false;
  };

  // By positions in `order`: which come before each, for sure. What has waited for others passes
  // that on only if it runs.
  std::vector<std::vector<bool>> follows;
  if (!one_context) follows.assign(order.size(), std::vector<bool>(order.size(), false));
  const auto follow = [&](size_t earlier, size_t later) {
    follows[later][earlier] = true;
    const Conditions& needed = graph.conditions[graph.contexts[order[earlier]]];
    const Conditions& given = graph.conditions[graph.contexts[order[later]]];
    if (!std::includes(given.begin(), given.end(), needed.begin(), needed.end())) return;
    for (size_t i = 0; i < earlier; ++i) {
      if (follows[earlier][i]) follows[later][i] = true;
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
    if (own != last_of_context.end()) {
      wait(order[own->second], node);
      if (!one_context) follow(own->second, i);
    }
    if (!one_context) {
      std::vector<size_t> latest;
      for (const auto& entry : last_of_context) latest.push_back(entry.second);
      std::sort(latest.rbegin(), latest.rend());
      for (const size_t position : latest) {
        const int other = graph.contexts[order[position]];
        if (other == context || follows[i][position]) continue;
        if (Exclude(graph.conditions[other], graph.conditions[context])) continue;
        if (!wait_across(position, i)) return std::nullopt;
        follow(position, i);
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
