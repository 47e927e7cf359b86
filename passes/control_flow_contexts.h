// Under which conditions, and in which loop, each node of a graph runs.

#ifndef TF_LIBRA_PASSES_CONTROL_FLOW_CONTEXTS_H_
#define TF_LIBRA_PASSES_CONTROL_FLOW_CONTEXTS_H_

#include <vector>

#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

struct Fanin {
  int node;
  int port;  // -1 for control edges
};

// Contexts, one per node, as small integers: 0 outside of all control flow. Two nodes with the same
// context run under the same branches of the same conditionals (lowered to Switch and Merge) and in
// the same frame of a while loop, so an edge between them neither crosses a frame nor lets a branch
// that was not taken switch the other node off.
//
// An edge runs from the context of a node's outputs to that of another's inputs. They are the same
// but for Enter, whose inputs are outside of the frame, and for Exit, whose outputs are.
struct ControlFlowContexts {
  std::vector<int> of_outputs;
  std::vector<int> of_inputs;
};

// `fanins[i]` are what node i consumes, without the back edges of loops but with what loop_frames.h
// has in their place; `order` is a topological order of the nodes.
ControlFlowContexts FindControlFlowContexts(const tensorflow::GraphDef& graph,
                                            const std::vector<std::vector<Fanin>>& fanins,
                                            const std::vector<int>& order);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_CONTROL_FLOW_CONTEXTS_H_
