#include "passes/trivial_nodes.h"

#include <unordered_set>

#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/grappler/op_types.h"

namespace tf_libra {
namespace {

using tensorflow::NodeDef;

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

// Ops that forward their inputs.
bool ForwardsInputs(const NodeDef& node) {
  static const auto& ops = *new std::unordered_set<absl::string_view>{
      "Identity", "IdentityN", "Reshape",        "Squeeze",     "ExpandDims",
      "Snapshot", "NoOp",      "ReadVariableOp", "StopGradient"};
  return IsOneOf(node, ops);
}

}  // namespace

std::vector<bool> FindTrivialNodes(const IndexedGraph& graph) {
  const size_t size = graph.fanins.size();
  std::vector<bool> known(size, false), trivial(size, false);
  for (const int i : graph.order) {
    const NodeDef& node = graph.def->node(i);
    if (IsControlFlow(node)) continue;
    bool has_data = false, all_known = true, all_trivial = true;
    for (const Fanin& fanin : graph.fanins[i]) {
      if (fanin.port < 0) continue;
      has_data = true;
      all_known = all_known && known[fanin.node];
      all_trivial = all_trivial && trivial[fanin.node];
    }
    known[i] = tensorflow::grappler::IsConstant(node) || ReadsOnlyShapes(node) ||
               (has_data && all_known && tensorflow::grappler::IsFreeOfSideEffect(node));
    trivial[i] = known[i] || !has_data || (all_trivial && ForwardsInputs(node));
  }
  return trivial;
}

}  // namespace tf_libra
