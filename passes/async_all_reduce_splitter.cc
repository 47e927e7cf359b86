#include "passes/async_all_reduce_splitter.h"

#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "passes/node_attributes.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/grappler/utils.h"

namespace tf_libra {
namespace {

using tensorflow::NodeDef;
using tensorflow::TensorId;
using tensorflow::grappler::TensorIdToString;

constexpr char kShapes[] = "_output_shapes";

// Returns the wait for the operation that `node` starts; moves the description of the outputs from
// `node` to it.
NodeDef Wait(const std::string& name, NodeDef* node) {
  NodeDef wait;
  wait.set_name(name);
  wait.set_op("LibraAllReduceWait");
  wait.set_device(node->device());
  CopyAttributes(*node, {"N", "T", kShapes}, &wait);
  node->mutable_attr()->erase(kShapes);
  const int num_tensors = static_cast<int>(node->attr().at("N").i());
  for (int i = 0; i <= num_tensors; ++i) wait.add_input(TensorIdToString({node->name(), i}));
  return wait;
}

}  // namespace

void SplitIntoStartDone(const std::vector<std::string>& names, tensorflow::GraphDef* graph) {
  std::unordered_set<std::string> taken;
  for (const NodeDef& node : graph->node()) taken.insert(node.name());
  std::unordered_map<std::string, std::string> waits;  // by the name of what is started
  for (const std::string& name : names) {
    std::string wait = absl::StrCat(name, "_wait");
    for (int i = 1; !taken.insert(wait).second; ++i) wait = absl::StrCat(name, "_wait_", i);
    waits.emplace(name, std::move(wait));
  }
  for (NodeDef& node : *graph->mutable_node()) {
    const bool is_started = waits.count(node.name()) > 0;
    for (std::string& input : *node.mutable_input()) {
      const TensorId id = tensorflow::ParseTensorName(input);
      const auto wait = waits.find(std::string(id.node()));
      if (wait == waits.end()) continue;
      if (is_started && id.index() == tensorflow::Graph::kControlSlot) continue;
      input = TensorIdToString({wait->second, id.index()});
    }
  }
  std::unordered_set<std::string> left(names.begin(), names.end());
  const int num_nodes = graph->node_size();
  for (int i = 0; i < num_nodes && !left.empty(); ++i) {
    const std::string name = graph->node(i).name();
    if (left.erase(name) == 0) continue;
    NodeDef* const wait = graph->add_node();
    NodeDef* const start = graph->mutable_node(i);
    start->set_op("LibraAllReduceStart");
    *wait = Wait(waits.at(name), start);
  }
}

}  // namespace tf_libra
