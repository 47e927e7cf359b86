// Conditions and loops under which each node of a graph runs.

#ifndef TF_LIBRA_PASSES_CONTROL_FLOW_CONTEXTS_H_
#define TF_LIBRA_PASSES_CONTROL_FLOW_CONTEXTS_H_

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Ports of edges without data: a control edge, and a dependency that exists once TensorFlow has
// merged ops (post_grappler_fusions.h).
constexpr int kControl = -1;
constexpr int kPostFusion = -2;

struct Fanin {
  int node;
  int port;
};

// Condition under which a node runs: a branch of a conditional, or a loop.
struct Condition {
  static Condition Branch(Fanin predicate, int taken) {
    return {predicate.node, predicate.port, taken, ""};
  }
  static Condition Loop(const std::string& frame) { return {kNone, kNone, kNone, frame}; }

  bool is_loop() const { return node == kNone; }
  // Another branch of the same conditional.
  bool Excludes(const Condition& other) const {
    return !is_loop() && node == other.node && port == other.port && taken != other.taken;
  }
  bool operator==(const Condition& other) const { return Key() == other.Key(); }
  bool operator<(const Condition& other) const { return Key() < other.Key(); }

  static constexpr int kNone = -1;
  int node;  // computes the predicate at output `port`; kNone for a loop
  int port;
  int taken;          // output of the Switch
  std::string frame;  // frame of the loop; empty for a branch

  std::tuple<int, int, int, const std::string&> Key() const { return {node, port, taken, frame}; }
};
using Conditions = std::set<Condition>;

// Contexts of nodes, as small integers; 0 is outside of all control flow. Two nodes with the same
// context run under the same branches of the same conditionals (lowered to Switch and Merge) and in
// the same frame of a while loop. So an edge between them crosses no frame, and a branch that is
// not taken cannot disable one of them.
//
// An edge leads from the context of a node's outputs to that of another node's inputs. A node's two
// contexts differ only for Enter, whose inputs are outside of the frame, and for Exit, whose
// outputs are.
struct ControlFlowContexts {
  std::vector<int> of_outputs;
  std::vector<int> of_inputs;
  std::vector<Conditions> conditions;  // of each context
};

// `fanins[i]` are the inputs of node i, with the edges of loop_frames.h in place of the back edges
// of loops; `order` is a topological order of the nodes.
ControlFlowContexts FindControlFlowContexts(const tensorflow::GraphDef& graph,
                                            const std::vector<std::vector<Fanin>>& fanins,
                                            const std::vector<int>& order);

// Returns the conditions that are in both sets.
Conditions Common(const Conditions& a, const Conditions& b);
// Returns whether nodes of `a` and `b` never run together, in two branches of one conditional.
bool Exclude(const Conditions& a, const Conditions& b);
// Returns whether both are in the same loops, and `inner` is under all conditions that `outer` is
// under.
bool IsBranchOf(const Conditions& inner, const Conditions& outer);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_CONTROL_FLOW_CONTEXTS_H_
