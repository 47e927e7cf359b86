#include "passes/backward_order.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/grappler/op_types.h"

namespace tf_libra {
namespace {

using tensorflow::NodeDef;

constexpr int kNone = -1;

bool IsOneOf(const NodeDef& node, const std::unordered_set<absl::string_view>& ops) {
  return ops.count(node.op()) > 0;
}

bool IsControlFlow(const NodeDef& node) {
  return tensorflow::grappler::ModifiesFrameInfo(node) || tensorflow::grappler::IsSwitch(node) ||
         tensorflow::grappler::IsMerge(node) || node.op() == "_SwitchN";
}

// Ops whose output is known from the shapes of their inputs.
bool ReadsOnlyShapes(const NodeDef& node) {
  static const auto& ops = *new std::unordered_set<absl::string_view>{
      "Shape", "ShapeN", "Size", "Rank", "VariableShape", "BroadcastGradientArgs"};
  return IsOneOf(node, ops);
}

// Ops that pass on their inputs.
bool HandsOn(const NodeDef& node) {
  static const auto& ops = *new std::unordered_set<absl::string_view>{
      "Identity", "IdentityN", "Reshape",        "Squeeze",     "ExpandDims",
      "Snapshot", "NoOp",      "ReadVariableOp", "StopGradient"};
  return IsOneOf(node, ops);
}

// Nodes that it would be of no use to hold up: constants and what follows from them and from shapes
// alone, variables, arguments. And as they have nothing to wait for, another pass may move them.
std::vector<bool> NoComputation(const IndexedGraph& graph) {
  const size_t size = graph.fanins.size();
  std::vector<bool> known(size, false), idle(size, false);
  for (const int i : graph.order) {
    const NodeDef& node = graph.def->node(i);
    if (IsControlFlow(node)) continue;
    bool has_data = false, all_known = true, all_idle = true;
    for (const Fanin& fanin : graph.fanins[i]) {
      if (fanin.port < 0) continue;
      has_data = true;
      all_known = all_known && known[fanin.node];
      all_idle = all_idle && idle[fanin.node];
    }
    known[i] = tensorflow::grappler::IsConstant(node) || ReadsOnlyShapes(node) ||
               (has_data && all_known && tensorflow::grappler::IsFreeOfSideEffect(node));
    idle[i] = known[i] || !has_data || (all_idle && HandsOn(node));
  }
  return idle;
}

// For each node, those that may become one op with it.
std::unordered_map<int, std::vector<int>> Partners(const IndexedGraph& graph) {
  std::unordered_map<int, std::vector<int>> partners;
  for (const auto& [one, other] : graph.post_fusion_pairs) {
    partners[one].push_back(other);
    partners[other].push_back(one);
  }
  return partners;
}

// One gradient of a copy of the step.
struct Production {
  int node;
  int group;
  std::vector<int> claimed;  // what leads to it and to none before, in topological order
  std::vector<int> also;     // gradients of later numbers that are held up here or nowhere
  int layer = 0;             // number of the first production that reads the same gradient
  bool is_held = false;      // whether it has waited for all groups before its own
};

class BackwardOrder {
 public:
  BackwardOrder(const IndexedGraph& graph, const std::vector<bool>& is_all_reduce)
      : graph_(graph),
        is_all_reduce_(is_all_reduce),
        idle_(NoComputation(graph)),
        partners_(Partners(graph)),
        position_(graph.fanins.size()),
        level_(graph.fanins.size(), kNone),
        held_(graph.fanins.size(), kNone) {
    for (size_t i = 0; i < graph.order.size(); ++i) position_[graph.order[i]] = i;
  }

  // `readers` are what reads the data of the step's all-reduces.
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
      // With a level, a gradient depends on it.
      if (level_[node] == kNone && !idle_[node]) Hold(node, due_);
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
  // How far a node is held up: half, by all that is due but for the last layer; or fully.
  enum { kHalf = 0, kFull = 1 };

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
          if (level_[node] != kNone) continue;
          level_[node] = number;
          production.claimed.push_back(node);
          for (const Fanin& fanin : graph_.fanins[node]) pending.push_back(fanin.node);
          const auto partners = partners_.find(node);
          if (partners == partners_.end()) continue;
          pending.insert(pending.end(), partners->second.begin(), partners->second.end());
        }
        std::sort(production.claimed.begin(), production.claimed.end(),
                  [this](int a, int b) { return position_[a] < position_[b]; });
        // Needed by an earlier one, or to become one op with what that needs.
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

  // The earlier productions that a gradient of `number` is held up with, if at all: it comes out of
  // a loop or a conditional that they have claimed, and cannot be held up itself.
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

  // A production that makes what later ones need begins a layer. Any other belongs to the layer
  // whose gradient it reads.
  void FindLayers() {
    std::vector<bool> begins(productions_.size(), false);
    std::vector<int> reads(productions_.size(), kNone);
    for (size_t i = first_; i < productions_.size(); ++i) {
      for (const int node : productions_[i].claimed) {
        for (const Fanin& fanin : graph_.fanins[node]) {
          const int level = level_[fanin.node];
          if (level < static_cast<int>(first_) || level == static_cast<int>(i)) continue;
          if (idle_[fanin.node]) continue;
          begins[level] = true;
          reads[i] = std::max(reads[i], level);
        }
      }
    }
    for (size_t i = first_; i < productions_.size(); ++i) {
      const int from = productions_[i].claimed.empty() ? level_[productions_[i].node]
                       : begins[i]                     ? kNone
                                                       : reads[i];
      const bool is_new = from < static_cast<int>(first_);
      productions_[i].layer = is_new ? static_cast<int>(i) : productions_[from].layer;
    }
  }

  // Makes the productions begin..end, which are one group, wait for those of the groups before.
  void HoldGroup(int begin, int end) {
    stage_ += 2;
    if (due_.empty()) {
      for (int i = begin; i < end; ++i) productions_[i].is_held = !idle_[productions_[i].node];
      AddDue(begin, end);
      return;
    }
    const int last_layer = productions_[due_.back()].layer;
    std::vector<int> early, late;
    for (const int i : due_) (productions_[i].layer < last_layer ? early : late).push_back(i);
    int layer = last_layer;  // of what is at hand
    bool is_beyond = false;  // whether that is more than one layer on
    for (int i = begin; i < end; ++i) {
      Production& production = productions_[i];
      if (production.claimed.empty()) continue;
      if (production.layer != layer && !idle_[production.node]) {
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
    // What leads on has waited for all that was due, or for all but the last layer; or nothing
    // does.
    std::set<Kind> held, held_layers;
    for (int i = begin; i < end; ++i) {
      if (!productions_[i].is_held) continue;
      held.insert(KindOf(productions_[i], kNone));
      held_layers.insert(KindOf(productions_[i], productions_[i].layer));
    }
    const auto is_done_with = [&](int i) {
      const Production& production = productions_[i];
      const bool has_waited = is_beyond || (layer != last_layer && production.layer < last_layer);
      return has_waited ? held.count(KindOf(production, kNone)) > 0
                        : held_layers.count(KindOf(production, production.layer)) > 0;
    };
    due_.erase(std::remove_if(due_.begin(), due_.end(), is_done_with), due_.end());
    AddDue(begin, end);
  }

  // A constant is there whenever it is needed.
  void AddDue(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      if (!idle_[productions_[i].node]) due_.push_back(i);
    }
  }

  // One that has waited stands for the earlier ones of its kind: layer (or kNone), device, context.
  using Kind = std::tuple<int, int, absl::string_view>;

  Kind KindOf(const Production& production, int layer) const {
    return {layer, graph_.contexts[production.node],
            absl::string_view(graph_.def->node(production.node).device())};
  }

  // Makes the first computation among what was claimed wait for `due`; or for `rest`, if it comes
  // after what has waited for the others.
  void HoldEntries(const Production& production, const std::vector<int>& due,
                   const std::vector<int>& rest, int how) {
    for (const int node : production.claimed) {
      int held = kNone;
      for (const Fanin& fanin : graph_.fanins[node]) {
        if (fanin.port != kPostFusion) held = std::max(held, held_[fanin.node]);
      }
      held_[node] = held >= stage_ ? held : kNone;
      if (held_[node] >= stage_ + how || idle_[node]) continue;
      if (how == kHalf && node == production.node) continue;  // HoldGradient's
      if (Hold(node, held_[node] == kNone ? due : rest)) held_[node] = stage_ + how;
    }
  }

  // Makes a gradient of the group that begins with production `begin` wait for `late`, and for all
  // that is due where nothing before it has waited for the others. Where it comes out of a loop or
  // a conditional, the nodes before that wait, whichever production of the group has claimed them.
  // False if none does.
  bool HoldGradient(int begin, int gradient, const std::vector<int>& late) {
    bool is_held = false;
    std::unordered_set<int> seen;
    std::vector<int> pending = {gradient};
    while (!pending.empty()) {
      const int node = pending.back();
      pending.pop_back();
      if (level_[node] < begin || idle_[node] || !seen.insert(node).second) continue;
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

  // Returns whether a control edge may lead to `node`, by what it is.
  bool IsSink(int node) const {
    const NodeDef& def = graph_.def->node(node);
    if (tensorflow::grappler::IsEnter(def)) return true;
    return !tensorflow::grappler::ModifiesFrameInfo(def) && !tensorflow::grappler::IsMerge(def) &&
           !is_all_reduce_[node];
  }

  // Makes `node` wait for those of `due` that it can wait for; false if there are none.
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
  const std::vector<bool> idle_;
  const std::unordered_map<int, std::vector<int>> partners_;
  std::vector<size_t> position_;  // in topological order
  std::vector<int> level_;        // number of the first production that a node leads to
  std::vector<int> held_;         // how far a node is held up: stage of its group + kHalf or kFull
  int stage_ = 0;
  std::vector<Production> productions_;
  size_t first_ = 0;      // the first production of the copy at hand
  std::vector<int> due_;  // productions of earlier groups that what comes has to wait for
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
  std::unordered_map<int, std::vector<int>> readers;  // of the data that an all-reduce outputs
  for (size_t node = 0; node < graph.fanins.size(); ++node) {
    for (const Fanin& fanin : graph.fanins[node]) {
      if (fanin.port < 0 || !is_all_reduce[fanin.node]) continue;
      std::vector<int>& of_this = readers[fanin.node];
      const int reader = static_cast<int>(node);
      if (of_this.empty() || of_this.back() != reader) of_this.push_back(reader);
    }
  }
  BackwardOrder order(graph, is_all_reduce);
  for (const OrderedStep& step : steps) {
    std::vector<int> of_step;
    for (const int node : numbers(step.all_reduces)) {
      const auto found = readers.find(node);
      if (found == readers.end()) continue;
      of_step.insert(of_step.end(), found->second.begin(), found->second.end());
    }
    order.Add(step, of_step);
  }
  return order.Take();
}

bool CloseCycle(const std::vector<ControlEdge>& waits, const IndexedGraph& graph) {
  std::vector<std::vector<Fanin>> fanins = graph.fanins;
  for (const ControlEdge& wait : waits) {
    const int node = static_cast<int>(fanins.size());
    fanins.emplace_back();
    for (const int before : wait.before) fanins.back().push_back({before, -1});
    for (const int after : wait.after) fanins[after].push_back({node, -1});
  }
  return TopologicalOrder(fanins).size() < fanins.size();
}

void WriteControlEdges(const std::vector<ControlEdge>& waits, const IndexedGraph& graph,
                       const std::string& prefix, tensorflow::GraphDef* def) {
  std::unordered_map<int, std::vector<std::string>> inputs;
  int num_joins = 0;
  for (const ControlEdge& wait : waits) {
    std::vector<std::string> before;
    for (const int node : wait.before) {
      before.push_back(absl::StrCat("^", graph.def->node(node).name()));
    }
    if (before.size() * wait.after.size() > before.size() + wait.after.size()) {
      std::string name;
      do {
        name = absl::StrCat(prefix, num_joins++);
      } while (graph.index.count(name) > 0);
      NodeDef* join = def->add_node();
      join->set_name(name);
      join->set_op("NoOp");
      join->set_device(graph.def->node(wait.after[0]).device());
      for (std::string& input : before) *join->add_input() = std::move(input);
      before = {absl::StrCat("^", name)};
    }
    for (const int node : wait.after) {
      inputs[node].insert(inputs[node].end(), before.begin(), before.end());
    }
  }
  for (auto& [node, added] : inputs) {
    auto* of_node = def->mutable_node(node)->mutable_input();
    std::unordered_set<std::string> seen(of_node->begin(), of_node->end());
    for (std::string& input : added) {
      if (seen.insert(input).second) *of_node->Add() = std::move(input);
    }
  }
}

}  // namespace tf_libra
