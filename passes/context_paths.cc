#include "passes/context_paths.h"

#include <algorithm>
#include <limits>
#include <string>

#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/grappler/op_types.h"

namespace tf_libra {
namespace {

constexpr int kNone = OrderingEdge::kNone;
constexpr int kNever = std::numeric_limits<int>::max();

// A node that may get a control input from the context of its inputs: no input of the graph, and
// nothing that control flow is made of but where it begins.
bool CanWait(const tensorflow::NodeDef& node) {
  if (tensorflow::grappler::IsEnter(node)) return true;
  return !tensorflow::grappler::ModifiesFrameInfo(node) &&
         !tensorflow::grappler::IsPlaceholder(node) && !tensorflow::grappler::IsMerge(node) &&
         node.op() != "_Arg" && node.op() != "LibraAllReduce";
}

bool Includes(const Conditions& all, const Conditions& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

}  // namespace

ContextPaths::ContextPaths(const IndexedGraph& graph, const DroppedEdge& dropped,
                           const ContractedDag& dag, const std::vector<std::vector<int>>& fused,
                           std::vector<int> order)
    : graph_(graph),
      dropped_(dropped),
      dag_(dag),
      fused_(fused),
      order_(std::move(order)),
      last_(dag.LastLeadingTo(order_)),
      first_(graph.fanins.size(), kNever),
      fusion_of_(graph.fanins.size(), kNone),
      is_choice_(graph.fanins.size()),
      is_exit_(graph.fanins.size()),
      is_switch_(graph.fanins.size()) {
  for (size_t i = 0; i < fused.size(); ++i) {
    for (const int node : fused[i]) fusion_of_[node] = static_cast<int>(i);
  }
  for (int node = 0; node < graph.def->node_size(); ++node) {
    const tensorflow::NodeDef& def = graph.def->node(node);
    is_choice_[node] = tensorflow::grappler::IsMerge(def) && graph.fanins[node].size() > 1;
    is_exit_[node] = tensorflow::grappler::IsExit(def);
    is_switch_[node] = tensorflow::grappler::IsSwitch(def);
  }
  for (size_t context = 0; context < graph.conditions.size(); ++context) {
    context_of_.emplace(graph.conditions[context], static_cast<int>(context));
  }
  for (size_t i = 0; i < order_.size(); ++i) LowerFirst(order_[i], static_cast<int>(i));
}

std::optional<OrderingEdge> ContextPaths::Find(size_t earlier, size_t later) {
  if (later != later_) waited_for_.clear();
  later_ = later;
  const int of_earlier = ContextOf(earlier);
  const int of_later = ContextOf(later);
  const int common = CommonContext(of_earlier, of_later);
  if (common == kNone) return std::nullopt;  // no node is in it
  for (size_t i = 0;; ++i) {
    const int end = common != of_earlier ? EndBehind(earlier, common, i)
                    : i == 0             ? order_[earlier]
                                         : kNone;
    if (end == kNone) return std::nullopt;
    // A node that must run before may not wait. Edges are added in the order of all-reduces, and
    // none from descendants of `later`, so `last_` is right without them.
    if (last_[end] >= static_cast<int>(later)) continue;
    if (common == of_later) return OrderingEdge{end, order_[later]};
    if (WaitsFor(later, end, common)) return OrderingEdge{end, kNone};
    const int candidate = FirstThatCanWait(earlier, later, end, common);
    if (candidate != kNone) return OrderingEdge{end, candidate};
    // A branch may wait for what is outside.
    if (IsBranchOf(graph_.conditions[of_later], graph_.conditions[common])) {
      return OrderingEdge{end, order_[later]};
    }
  }
}

void ContextPaths::Add(int from, int to) {
  added_[to].push_back(from);
  LowerFirst(from, first_[to]);
  for (auto& [context, waited_for] : waited_for_) {
    if (waited_for[to]) Extend(from, context, &waited_for);
  }
}

int ContextPaths::CommonContext(int a, int b) {
  const auto [found, is_new] = common_.emplace(std::make_pair(a, b), kNone);
  if (is_new) {
    const auto context = context_of_.find(Common(graph_.conditions[a], graph_.conditions[b]));
    if (context != context_of_.end()) found->second = context->second;
  }
  return found->second;
}

// Notes that `node`, and all that leads to it, leads to the all-reduce at `first`.
void ContextPaths::LowerFirst(int node, int first) {
  std::vector<int> pending;
  const auto visit = [&](int next) {
    if (first_[next] <= first) return;
    first_[next] = first;
    pending.push_back(next);
  };
  visit(node);
  while (!pending.empty()) {
    const int next = pending.back();
    pending.pop_back();
    ++num_visited_;
    VisitFanins(next, [](const Fanin&) { return true; }, visit);
  }
}

// The nodes at which branches and loops end into `context` and that wait for the all-reduce at
// `earlier` if that runs, the nearest first. kNone behind the last.
int ContextPaths::EndBehind(size_t earlier, int context, size_t index) {
  const Conditions& known = graph_.conditions[ContextOf(earlier)];
  const auto [found, is_new] = ends_.try_emplace({earlier, context});
  EndSearch& search = found->second;
  if (is_new) {
    const int node = order_[earlier];
    search.seen.insert(node);
    search.pending.push_back(node);
    if (fusion_of_[node] != kNone) {
      for (const int member : fused_[fusion_of_[node]]) {
        if (search.seen.insert(member).second) search.pending.push_back(member);
      }
    }
  }
  while (search.ends.size() <= index && search.next < search.pending.size()) {
    const int node = search.pending[search.next++];
    ++num_visited_;
    const bool is_end = is_exit_[node] || tensorflow::grappler::IsMerge(graph_.def->node(node));
    if (is_end && graph_.contexts[node] == context) search.ends.push_back(node);
    VisitFanouts(node, known, &search);
  }
  return index < search.ends.size() ? search.ends[index] : kNone;
}

// Adds what waits for `node` under the conditions `known`, in later iterations, too.
void ContextPaths::VisitFanouts(int node, const Conditions& known, EndSearch* search) {
  if (fanouts_.empty()) {
    fanouts_.resize(graph_.fanins.size());
    for (int next = 0; next < graph_.def->node_size(); ++next) {
      for (const std::string& input : graph_.def->node(next).input()) {
        const tensorflow::TensorId id = tensorflow::ParseTensorName(input);
        fanouts_[graph_.index.at(id.node())].push_back({next, id.index()});
      }
    }
  }
  for (const auto& [next, port] : fanouts_[node]) {
    if (dropped_({node, port}, next)) continue;
    // A Merge waits for the branch that was taken.
    if (is_choice_[next] && port >= 0 && !IsTaken(node, known)) continue;
    if (search->seen.insert(next).second) search->pending.push_back(next);
  }
}

// True if the all-reduce at `later` waits for `node`, which is in `context`, whatever else runs.
bool ContextPaths::WaitsFor(size_t later, int node, int context) {
  if (graph_.input_contexts[node] != context || first_[node] > static_cast<int>(later)) {
    return false;
  }
  const auto [found, is_new] = waited_for_.try_emplace(context);
  if (is_new) {
    found->second.resize(graph_.fanins.size());
    Extend(order_[later], context, &found->second);
  }
  return found->second[node];
}

// Adds `node` and all that it waits for.
void ContextPaths::Extend(int node, int context, std::vector<bool>* waited_for) {
  std::vector<int> pending;
  const auto visit = [&](int next) {
    if ((*waited_for)[next]) return;
    (*waited_for)[next] = true;
    pending.push_back(next);
  };
  visit(node);
  while (!pending.empty()) {
    const int next = pending.back();
    pending.pop_back();
    ++num_visited_;
    VisitCertainFanins(next, context, visit);
  }
}

// The nearest node with inputs of `context` that can be made to wait for `end`, for which the
// all-reduce at `later` waits in any case. kNone if there is none.
int ContextPaths::FirstThatCanWait(size_t earlier, size_t later, int end, int context) {
  std::unordered_set<int> seen = {order_[later]};
  std::vector<int> pending = {order_[later]};
  const auto visit = [&](int next) {
    if (seen.insert(next).second) pending.push_back(next);
  };
  for (size_t i = 0; i < pending.size(); ++i) {
    const int node = pending[i];
    ++num_visited_;
    // An ancestor of `end` may not wait for it.
    if (graph_.input_contexts[node] == context && node != end &&
        first_[node] > static_cast<int>(earlier) && CanWait(graph_.def->node(node)) &&
        (first_[node] > first_[end] || !dag_.Reaches(node, end))) {
      return node;
    }
    VisitCertainFanins(node, context, visit);
  }
  return kNone;
}

// True if a data input of a Merge is there under the conditions `known`.
bool ContextPaths::IsTaken(int fanin, const Conditions& known) const {
  if (is_switch_[fanin]) return false;  // one of its ports
  return Includes(known, graph_.conditions[graph_.contexts[fanin]]);
}

template <typename Counts, typename Visit>
void ContextPaths::VisitFanins(int node, Counts counts, Visit visit) const {
  for (const Fanin& fanin : graph_.fanins[node]) {
    if (counts(fanin) && !dropped_(fanin, node)) visit(fanin.node);
  }
  // The other parts of what `node` is fused into count among what it waits for.
  if (fusion_of_[node] != kNone) {
    for (const int member : fused_[fusion_of_[node]]) visit(member);
  }
  const auto added = added_.find(node);
  if (added != added_.end()) {
    for (const int from : added->second) visit(from);
  }
}

template <typename Visit>
void ContextPaths::VisitCertainFanins(int node, int context, Visit visit) const {
  const auto counts = [&](const Fanin& fanin) {
    // An Exit leaves before other values of the loop have (loop_frames.h takes them for one).
    if (fanin.port == kPostFusion || (is_exit_[node] && fanin.port < 0)) return false;
    return !is_choice_[node] || fanin.port < 0 || IsTaken(fanin.node, graph_.conditions[context]);
  };
  VisitFanins(node, counts, visit);
}

}  // namespace tf_libra
