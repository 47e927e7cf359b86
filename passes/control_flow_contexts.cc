#include "passes/control_flow_contexts.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/grappler/op_types.h"

namespace tf_libra {
namespace {

bool IsSwitchOp(const tensorflow::NodeDef& node) {
  return tensorflow::grappler::IsSwitch(node) || node.op() == "_SwitchN";
}

// Gives equal sets of conditions equal numbers.
class Interner {
 public:
  Interner() { Intern({}); }

  int Intern(Conditions conditions) {
    const auto [found, added] =
        ids_.emplace(std::move(conditions), static_cast<int>(by_id_.size()));
    if (added) by_id_.push_back(&found->first);
    return found->second;
  }

  int Union(int a, int b) {
    if (a == b || b == 0) return a;
    if (a == 0) return b;
    const std::pair<int, int> key(std::min(a, b), std::max(a, b));
    const auto found = unions_.find(key);
    if (found != unions_.end()) return found->second;
    Conditions all = *by_id_[a];
    all.insert(by_id_[b]->begin(), by_id_[b]->end());
    return unions_[key] = Intern(std::move(all));
  }

  int Intersection(int a, int b) {
    if (a == b) return a;
    return Intern(Common(*by_id_[a], *by_id_[b]));
  }

  std::vector<Conditions> All() const {
    std::vector<Conditions> all;
    for (const Conditions* conditions : by_id_) all.push_back(*conditions);
    return all;
  }

 private:
  std::map<Conditions, int> ids_;
  std::vector<const Conditions*> by_id_;
  std::map<std::pair<int, int>, int> unions_;
};

std::string FrameName(const tensorflow::NodeDef& enter) {
  const auto found = enter.attr().find("frame_name");
  return found == enter.attr().end() ? std::string() : found->second.s();
}

}  // namespace

ControlFlowContexts FindControlFlowContexts(const tensorflow::GraphDef& graph,
                                            const std::vector<std::vector<Fanin>>& fanins,
                                            const std::vector<int>& order) {
  ControlFlowContexts found;
  found.of_outputs.assign(graph.node_size(), 0);
  found.of_inputs.assign(graph.node_size(), 0);
  found.conditions = {Conditions{}};
  std::vector<int>& contexts = found.of_outputs;
  if (std::none_of(graph.node().begin(), graph.node().end(), [](const tensorflow::NodeDef& node) {
        return IsSwitchOp(node) || tensorflow::grappler::ModifiesFrameInfo(node);
      })) {
    return found;
  }

  Interner interner;
  std::unordered_map<std::string, int> outside_of_frame;
  std::unordered_map<std::string, std::string> parent_of_frame;
  std::vector<std::string> frames(graph.node_size());  // innermost frame of each node
  for (const int i : order) {
    const tensorflow::NodeDef& node = graph.node(i);
    const bool is_merge = tensorflow::grappler::IsMerge(node);
    // Along a Switch's output the branch taken is a condition; the Switch itself always runs.
    const auto context_of = [&](const Fanin& fanin) {
      const tensorflow::NodeDef& from = graph.node(fanin.node);
      if (fanin.port < 0 || !IsSwitchOp(from) || fanins[fanin.node].size() < 2) {
        return contexts[fanin.node];
      }
      const Fanin& predicate = fanins[fanin.node][1];
      return interner.Union(contexts[fanin.node],
                            interner.Intern({Condition::Branch(predicate, fanin.port)}));
    };
    int context = 0;
    bool first = true;
    for (const Fanin& fanin : fanins[i]) {
      // A Merge runs with the first of its data inputs that is not switched off. It waits for its
      // control inputs, too, but they do not switch it off.
      if (!is_merge || fanin.port >= 0) {
        const int incoming = context_of(fanin);
        context = first      ? incoming
                  : is_merge ? interner.Intersection(context, incoming)
                             : interner.Union(context, incoming);
        first = false;
      }
      if (!frames[fanin.node].empty()) frames[i] = frames[fanin.node];
    }
    found.of_inputs[i] = context;
    if (tensorflow::grappler::IsEnter(node)) {
      const std::string frame = FrameName(node);
      parent_of_frame.emplace(frame, frames[i]);
      int& outside = outside_of_frame.emplace(frame, context).first->second;
      outside = interner.Union(outside, context);
      frames[i] = frame;
      context = interner.Union(context, interner.Intern({Condition::Loop(frame)}));
    } else if (tensorflow::grappler::IsExit(node)) {
      context = outside_of_frame[frames[i]];
      frames[i] = parent_of_frame[frames[i]];
    }
    contexts[i] = context;
  }
  found.conditions = interner.All();
  return found;
}

Conditions Common(const Conditions& a, const Conditions& b) {
  Conditions both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.begin()));
  return both;
}

bool Exclude(const Conditions& a, const Conditions& b) {
  return std::any_of(a.begin(), a.end(), [&b](const Condition& one) {
    return std::any_of(b.begin(), b.end(),
                       [&one](const Condition& other) { return one.Excludes(other); });
  });
}

bool IsBranchOf(const Conditions& inner, const Conditions& outer) {
  return std::includes(inner.begin(), inner.end(), outer.begin(), outer.end()) &&
         std::all_of(inner.begin(), inner.end(), [&outer](const Condition& one) {
           return !one.is_loop() || outer.count(one) > 0;
         });
}

}  // namespace tf_libra
