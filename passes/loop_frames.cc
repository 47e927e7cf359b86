#include "passes/loop_frames.h"

#include <map>
#include <string>
#include <utility>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/grappler/op_types.h"

namespace tf_libra {
namespace {

constexpr int kRoot = 0;

struct Frame {
  int parent = kRoot;
  std::vector<int> entering;  // Enters, and NextIterations that enter once more
  std::vector<int> exits;
};

}  // namespace

void CloseLoops(const tensorflow::GraphDef& graph, const std::vector<int>& order,
                std::vector<std::vector<Fanin>>* fanins) {
  std::vector<Frame> frames(1);
  std::map<std::pair<int, std::string>, int> numbers;   // (parent, name) -> frame
  std::vector<int> frame_of(graph.node_size(), kRoot);  // in which a node's outputs are
  for (const int i : order) {
    const tensorflow::NodeDef& node = graph.node(i);
    int frame = kRoot;
    for (const Fanin& fanin : (*fanins)[i]) {
      if (frame_of[fanin.node] != kRoot) frame = frame_of[fanin.node];
    }
    if (tensorflow::grappler::IsEnter(node)) {
      const auto name = node.attr().find("frame_name");
      const auto [found, is_new] = numbers.emplace(
          std::make_pair(frame, name == node.attr().end() ? std::string() : name->second.s()),
          static_cast<int>(frames.size()));
      if (is_new) frames.push_back({frame, {}, {}});
      frame = found->second;
      frames[frame].entering.push_back(i);
    } else if (tensorflow::grappler::IsExit(node)) {
      frames[frame].exits.push_back(i);
      frame = frames[frame].parent;
    } else if (tensorflow::grappler::IsNextIteration(node)) {
      frames[frame].entering.push_back(i);
    }
    frame_of[i] = frame;
  }
  for (size_t number = kRoot + 1; number < frames.size(); ++number) {
    const Frame& frame = frames[number];
    if (frame.exits.empty()) continue;
    const int first = frame.exits[0];
    for (const int node : frame.entering) (*fanins)[first].push_back({node, -1});
    for (const int exit : frame.exits) {
      if (exit != first) (*fanins)[exit].push_back({first, -1});
    }
  }
}

}  // namespace tf_libra
