#include "passes/backward_order.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/string_view.h"
#include "passes/trivial_nodes.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/grappler/op_types.h"

namespace tf_libra {
namespace {

using tensorflow::NodeDef;

constexpr int kUnset = -1;

// Returns, by node, the nodes that TensorFlow may merge with it after Grappler.
std::unordered_map<int, std::vector<int>> Partners(const IndexedGraph& graph) {
  std::unordered_map<int, std::vector<int>> partners;
  for (const auto& [first, second] : graph.post_fusion_pairs) {
    partners[first].push_back(second);
    partners[second].push_back(first);
  }
  return partners;
}

// One gradient of a copy of the step.
struct Production {
  int node;
  int group;
  std::vector<int> claimed;  // ancestors that no earlier production has, in topological order
  std::vector<int> also;     // later gradients that can only be delayed together with this one
  int layer = 0;             // number of the first production that reads the same gradient
  bool is_held = false;      // whether it waits for all earlier groups
};

class BackwardOrder {
 public:
  BackwardOrder(const IndexedGraph& graph, const std::vector<bool>& is_all_reduce)
      : graph_(graph),
        is_all_reduce_(is_all_reduce),
        is_trivial_(FindTrivialNodes(graph)),
        partners_(Partners(graph)),
        position_(graph.fanins.size()),
        level_(graph.fanins.size(), kUnset),
        held_(graph.fanins.size(), kUnset) {
    for (size_t i = 0; i < graph.order.size(); ++i) position_[graph.order[i]] = i;
  }

  // Adds one copy of the step. `readers` read the outputs of its all-reduces.
  void Add(const OrderedStep& step, const std::vector<int>& readers) {
    first_ = productions_.size();
    Claim(step);
    FindLayers();
    due_.clear();
    for (size_t begin = first_, end; begin < productions_.size(); begin = end) {
      end = begin;
      while (end < productions_.size() && productions_[end].group == productions_[begin].group) {
        ++end;
      }
      HoldGroup(static_cast<int>(begin), static_cast<int>(end));
    }
    stage_ += 2;
    for (const int node : readers) {
      // A gradient depends on a reader that has a level.
      if (level_[node] == kUnset && !is_trivial_[node]) Hold(node, due_);
    }
  }

  std::vector<ControlEdge> Take() {
    std::vector<ControlEdge> waits;
    for (auto& [before, after] : waits_) {
      std::sort(after.begin(), after.end());
      after.erase(std::unique(after.begin(), after.end()), after.end());
      waits.push_back({before, std::move(after)});
    }
    return waits;
  }

 private:
  // A node waits for all due productions (full), or for all but those of the last layer (half).
  enum { kHalf = 0, kFull = 1 };

  // Numbers the productions of the step, and assigns each unclaimed ancestor to the first of them.
  void Claim(const OrderedStep& step) {
    for (size_t group = 0; group < step.producers.size(); ++group) {
      for (const std::string& name : step.producers[group]) {
        const auto found = graph_.index.find(name);
        if (found == graph_.index.end()) continue;
        const int number = static_cast<int>(productions_.size());
        Production production;
        production.node = found->second;
        production.group = static_cast<int>(group);
        std::vector<int> pending = {production.node};
        while (!pending.empty()) {
          const int node = pending.back();
          pending.pop_back();
          if (level_[node] != kUnset) continue;
          level_[node] = number;
          production.claimed.push_back(node);
          for (const Fanin& fanin : graph_.fanins[node]) pending.push_back(fanin.node);
          const auto partners = partners_.find(node);
          if (partners == partners_.end()) continue;
          pending.insert(pending.end(), partners->second.begin(), partners->second.end());
        }
        std::sort(production.claimed.begin(), production.claimed.end(),
                  [this](int a, int b) { return position_[a] < position_[b]; });
        // An earlier production needs this gradient, or TensorFlow merges it with such a node.
        const int level = level_[production.node];
        if (level != number && level >= static_cast<int>(first_)) {
          productions_[level].also.push_back(production.node);
        } else if (level == number) {
          for (const int earlier : LeavesWith(production.node, number)) {
            productions_[earlier].also.push_back(production.node);
          }
        }
        productions_.push_back(std::move(production));
      }
    }
  }

  // Returns the earlier productions whose delay also delays a gradient of production `number`: the
  // gradient leaves a loop or conditional that they have claimed, and cannot be delayed itself.
  std::set<int> LeavesWith(int gradient, int number) const {
    std::set<int> earlier;
    std::unordered_set<int> seen;
    std::vector<int> pending = {gradient};
    while (!pending.empty()) {
      const int node = pending.back();
      pending.pop_back();
      if (!seen.insert(node).second) continue;
      if (level_[node] != number) {
        if (level_[node] >= static_cast<int>(first_)) earlier.insert(level_[node]);
        continue;
      }
      if (IsSink(node)) continue;
      for (const Fanin& fanin : graph_.fanins[node]) {
        if (fanin.port != kPostFusion) pending.push_back(fanin.node);
      }
    }
    return earlier;
  }

  // Assigns layers. A production that computes an input of later ones begins a layer. Any other
  // belongs to the layer whose gradient it reads.
  void FindLayers() {
    std::vector<bool> begins(productions_.size(), false);
    std::vector<int> reads(productions_.size(), kUnset);
    for (size_t i = first_; i < productions_.size(); ++i) {
      for (const int node : productions_[i].claimed) {
        for (const Fanin& fanin : graph_.fanins[node]) {
          const int level = level_[fanin.node];
          if (level < static_cast<int>(first_) || level == static_cast<int>(i)) continue;
          if (is_trivial_[fanin.node]) continue;
          begins[level] = true;
          reads[i] = std::max(reads[i], level);
        }
      }
    }
    for (size_t i = first_; i < productions_.size(); ++i) {
      const int from = productions_[i].claimed.empty() ? level_[productions_[i].node]
                       : begins[i]                     ? kUnset
                                                       : reads[i];
      const bool is_new = from < static_cast<int>(first_);
      productions_[i].layer = is_new ? static_cast<int>(i) : productions_[from].layer;
    }
  }

  // Makes the productions from `begin` to `end`, which are one group, wait for earlier groups.
  void HoldGroup(int begin, int end) {
    stage_ += 2;
    if (due_.empty()) {
      for (int i = begin; i < end; ++i)
        productions_[i].is_held = !is_trivial_[productions_[i].node];
      AddDue(begin, end);
      return;
    }
    const int last_layer = productions_[due_.back()].layer;
    std::vector<int> early, late;
    for (const int i : due_) (productions_[i].layer < last_layer ? early : late).push_back(i);
    int layer = last_layer;  // of the current production
    bool is_beyond = false;  // whether it is more than one layer after `last_layer`
    for (int i = begin; i < end; ++i) {
      Production& production = productions_[i];
      if (production.claimed.empty()) continue;
      if (production.layer != layer && !is_trivial_[production.node]) {
        is_beyond = is_beyond || layer != last_layer;
        layer = production.layer;
      }
      if (is_beyond) {
        HoldEntries(production, due_, late, kFull);
        production.is_held =
            held_[production.node] == stage_ + kFull || HoldGradient(begin, production.node, late);
      } else {
        HoldEntries(production, early, {}, kHalf);
        production.is_held = HoldGradient(begin, production.node, late);
        for (const int node : production.also) HoldGradient(begin, node, late);
      }
    }
    // Drop due productions that a held production of this group stands for: it waits for all of
    // them, or for all but those of the last layer.
    std::set<Kind> held, held_layers;
    for (int i = begin; i < end; ++i) {
      if (!productions_[i].is_held) continue;
      held.insert(KindOf(productions_[i], kUnset));
      held_layers.insert(KindOf(productions_[i], productions_[i].layer));
    }
    const auto is_done_with = [&](int i) {
      const Production& production = productions_[i];
      const bool has_waited = is_beyond || (layer != last_layer && production.layer < last_layer);
      return has_waited ? held.count(KindOf(production, kUnset)) > 0
                        : held_layers.count(KindOf(production, production.layer)) > 0;
    };
    due_.erase(std::remove_if(due_.begin(), due_.end(), is_done_with), due_.end());
    AddDue(begin, end);
  }

  // Adds productions for which later groups wait. Trivial ones need no wait.
  void AddDue(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      if (!is_trivial_[productions_[i].node]) due_.push_back(i);
    }
  }

  // Layer (or kUnset), context and device. A held production stands for earlier ones of its kind.
  using Kind = std::tuple<int, int, absl::string_view>;

  Kind KindOf(const Production& production, int layer) const {
    return {layer, graph_.contexts[production.node],
            absl::string_view(graph_.def->node(production.node).device())};
  }

  // Makes the first computations among the claimed nodes wait for `due`, or only for `rest` if
  // their inputs have waited for the others.
  void HoldEntries(const Production& production, const std::vector<int>& due,
                   const std::vector<int>& rest, int how) {
    for (const int node : production.claimed) {
      int held = kUnset;
      for (const Fanin& fanin : graph_.fanins[node]) {
        if (fanin.port != kPostFusion) held = std::max(held, held_[fanin.node]);
      }
      held_[node] = held >= stage_ ? held : kUnset;
      if (held_[node] >= stage_ + how || is_trivial_[node]) continue;
      if (how == kHalf && node == production.node) continue;  // left to HoldGradient
      if (Hold(node, held_[node] == kUnset ? due : rest)) held_[node] = stage_ + how;
    }
  }

  // Makes a gradient of the group that begins with production `begin` wait for `late`, or for all
  // due productions if no ancestor has waited for the others. If the gradient leaves a loop or a
  // conditional, the nodes before that wait, whichever production of the group has claimed them.
  // Returns false if no node waits.
  bool HoldGradient(int begin, int gradient, const std::vector<int>& late) {
    bool is_held = false;
    std::unordered_set<int> seen;
    std::vector<int> pending = {gradient};
    while (!pending.empty()) {
      const int node = pending.back();
      pending.pop_back();
      if (level_[node] < begin || is_trivial_[node] || !seen.insert(node).second) continue;
      if (held_[node] == stage_ + kFull ||
          Hold(node, held_[node] == stage_ + kHalf ? late : due_)) {
        held_[node] = stage_ + kFull;
        is_held = true;
        continue;
      }
      for (const Fanin& fanin : graph_.fanins[node]) {
        if (fanin.port != kPostFusion) pending.push_back(fanin.node);
      }
    }
    if (is_held) held_[gradient] = stage_ + kFull;
    return is_held;
  }

  // Returns whether a control edge may lead to `node`, by its op.
  bool IsSink(int node) const {
    const NodeDef& def = graph_.def->node(node);
    if (tensorflow::grappler::IsEnter(def)) return true;
    return !tensorflow::grappler::ModifiesFrameInfo(def) && !tensorflow::grappler::IsMerge(def) &&
           !is_all_reduce_[node];
  }

  // Makes `node` wait for the productions of `due` on its device and in its context. Returns false
  // if there are none.
  bool Hold(int node, const std::vector<int>& due) {
    if (!IsSink(node)) return false;
    std::vector<int> before;
    int from_group = 0;
    for (const int i : due) {
      const Production& production = productions_[i];
      if (graph_.contexts[production.node] != graph_.input_contexts[node] ||
          graph_.def->node(production.node).device() != graph_.def->node(node).device()) {
        continue;
      }
      if (production.is_held) from_group = std::max(from_group, production.group);
      before.push_back(i);
    }
    std::vector<int> nodes;
    for (const int i : before) {
      if (productions_[i].group >= from_group) nodes.push_back(productions_[i].node);
    }
    if (nodes.empty()) return false;
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    waits_[nodes].push_back(node);
    return true;
  }

  const IndexedGraph& graph_;
  const std::vector<bool>& is_all_reduce_;
  const std::vector<bool> is_trivial_;
  const std::unordered_map<int, std::vector<int>> partners_;
  std::vector<size_t> position_;  // in topological order
  std::vector<int> level_;        // by node: the first production that depends on it
  std::vector<int> held_;         // by node: stage of its group + kHalf or kFull
  int stage_ = 0;
  std::vector<Production> productions_;
  size_t first_ = 0;      // the first production of the current copy
  std::vector<int> due_;  // productions of earlier groups for which later groups wait
  std::map<std::vector<int>, std::vector<int>> waits_;  // before -> after
};

}  // namespace

std::vector<ControlEdge> KeepBackwardOrder(const std::vector<OrderedStep>& steps,
                                           const IndexedGraph& graph) {
  const auto numbers = [&graph](const std::vector<std::string>& names) {
    std::vector<int> found;
    for (const std::string& name : names) {
      const auto number = graph.index.find(name);
      if (number != graph.index.end()) found.push_back(number->second);
    }
    return found;
  };
  std::vector<bool> is_all_reduce(graph.fanins.size(), false);
  for (const OrderedStep& step : steps) {
    for (const int node : numbers(step.all_reduces)) is_all_reduce[node] = true;
  }
  std::unordered_map<int, std::vector<int>> readers;  // by all-reduce: nodes that read its outputs
  for (size_t node = 0; node < graph.fanins.size(); ++node) {
    for (const Fanin& fanin : graph.fanins[node]) {
      if (fanin.port < 0 || !is_all_reduce[fanin.node]) continue;
      std::vector<int>& known = readers[fanin.node];
      const int reader = static_cast<int>(node);
      if (known.empty() || known.back() != reader) known.push_back(reader);
    }
  }
  BackwardOrder order(graph, is_all_reduce);
  for (const OrderedStep& step : steps) {
    std::vector<int> step_readers;
    for (const int node : numbers(step.all_reduces)) {
      const auto found = readers.find(node);
      if (found == readers.end()) continue;
      step_readers.insert(step_readers.end(), found->second.begin(), found->second.end());
    }
    order.Add(step, step_readers);
  }
  return order.Take();
}

}  // namespace tf_libra
