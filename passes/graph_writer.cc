#include "passes/graph_writer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/attr_value_util.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/grappler/utils.h"

namespace tf_libra {
namespace {

using tensorflow::AttrValue;
using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::TensorId;

constexpr char kLocationPrefix[] = "loc:@";

// Location of an output of a fused all-reduce.
struct Output {
  const Fusion* fusion;
  int port;
};

class Writer {
 public:
  Writer(const IndexedGraph& graph, const Decisions& decisions, const NodesToKeep& keep,
         bool needs_done)
      : graph_(graph), dropped_(decisions.dropped), keep_(keep), needs_done_(needs_done) {
    for (const Fusion& fusion : decisions.fusions) {
      int port = 0;
      for (const PlannedAllReduce* m : fusion.members) outputs_[m->node] = {&fusion, port++};
    }
  }

  const Output* Find(int node) const {
    const auto found = outputs_.find(node);
    return found == outputs_.end() ? nullptr : &found->second;
  }

  // Returns whether `input` of `node` is an edge that is left out.
  bool IsDropped(const std::string& input, int node) const {
    const TensorId id = tensorflow::ParseTensorName(input);
    return dropped_({graph_.index.at(id.node()), id.index()}, node);
  }

  // An input as it reads after fusing.
  std::string Input(const std::string& input) const {
    const TensorId id = tensorflow::ParseTensorName(input);
    const Output* output = Find(graph_.index.at(id.node()));
    if (output == nullptr) return input;
    if (id.index() == tensorflow::Graph::kControlSlot) return Control(output->fusion->name);
    return Data(*output);
  }

  static std::string Control(const std::string& node) { return absl::StrCat("^", node); }

  static std::string Data(const Output& output) {
    return tensorflow::grappler::TensorIdToString({output.fusion->name, output.port});
  }

  static std::string Done(const Fusion& fusion) { return absl::StrCat(fusion.name, "_done"); }

  // Readers of a fused all-reduce wait for the op that signals its end; otherwise nothing would run
  // that op.
  void WaitForDone(const NodeDef& old, NodeDef* node) const {
    if (!needs_done_ || old.op() == "Merge" || old.op() == "RefMerge") return;
    std::vector<std::string> done;
    for (const std::string& input : old.input()) {
      const TensorId id = tensorflow::ParseTensorName(input);
      const Output* output = Find(graph_.index.at(id.node()));
      if (output == nullptr || id.index() == tensorflow::Graph::kControlSlot) continue;
      done.push_back(Done(*output->fusion));
    }
    AddControlInputs(done, node);
  }

  // A node that stays: its inputs and colocations follow the all-reduces that went.
  void Redirect(int index, NodeDef* node) const {
    bool changed = false;
    std::vector<std::string> inputs;
    for (const std::string& input : node->input()) {
      if (IsDropped(input, index)) {
        changed = true;
        continue;
      }
      inputs.push_back(Input(input));
      changed = changed || inputs.back() != input;
    }
    if (changed) {
      node->clear_input();
      AddInputs(inputs, node);
    }
    const auto locations = node->attr().find("_class");
    if (locations == node->attr().end()) return;
    for (std::string& location : *(*node->mutable_attr())["_class"].mutable_list()->mutable_s()) {
      location = Location(location);
    }
  }

  // The attributes that start with '_', which belong to no op in particular.
  void MergeAttributes(const Fusion& fusion, NodeDef* node) const {
    const NodeDef& first = graph_.def->node(fusion.members[0]->node);
    const auto is_everywhere = [&](const std::string& name, auto matches) {
      return std::all_of(fusion.members.begin(), fusion.members.end(),
                         [&](const PlannedAllReduce* m) {
                           const auto& attrs = graph_.def->node(m->node).attr();
                           const auto attr = attrs.find(name);
                           return attr != attrs.end() && matches(attr->second);
                         });
    };
    for (const auto& [name, value] : first.attr()) {
      if (!absl::StartsWith(name, "_") || name == "_class") continue;
      if (name == "_output_shapes") {
        if (!is_everywhere(name, [](const AttrValue& v) { return v.list().shape_size() == 1; })) {
          continue;
        }
        AttrValue shapes;
        for (const PlannedAllReduce* m : fusion.members) {
          *shapes.mutable_list()->add_shape() =
              graph_.def->node(m->node).attr().at(name).list().shape(0);
        }
        (*node->mutable_attr())[name] = shapes;
      } else if (is_everywhere(name, [&v = value](const AttrValue& other) {
                   return tensorflow::AreAttrValuesEqual(v, other);
                 })) {
        (*node->mutable_attr())[name] = value;
      }
    }
    AttrValue locations;
    std::unordered_set<std::string> seen = {absl::StrCat(kLocationPrefix, fusion.name)};
    for (const PlannedAllReduce* m : fusion.members) {
      const auto& attrs = graph_.def->node(m->node).attr();
      const auto attr = attrs.find("_class");
      if (attr == attrs.end()) continue;
      for (const std::string& old : attr->second.list().s()) {
        const std::string location = Location(old);
        if (seen.insert(location).second) locations.mutable_list()->add_s(location);
      }
    }
    if (locations.list().s_size() > 0) (*node->mutable_attr())["_class"] = locations;
    for (const PlannedAllReduce* m : fusion.members) {
      *node->mutable_experimental_debug_info()->add_original_node_names() =
          graph_.def->node(m->node).name();
    }
  }

  // Adds a control input for each of `names`, except where there is one.
  static void AddControlInputs(const std::vector<std::string>& names, NodeDef* node) {
    if (names.empty()) return;
    std::unordered_set<std::string> seen(node->input().begin(), node->input().end());
    for (const std::string& name : names) {
      std::string input = Control(name);
      if (seen.insert(input).second) node->add_input(std::move(input));
    }
  }

  // Adds data inputs as they are, and each control input once, behind them.
  static void AddInputs(const std::vector<std::string>& inputs, NodeDef* node) {
    std::unordered_set<std::string> seen;
    for (const std::string& input : inputs) {
      if (!absl::StartsWith(input, "^")) node->add_input(input);
    }
    for (const std::string& input : inputs) {
      if (absl::StartsWith(input, "^") && seen.insert(input).second) node->add_input(input);
    }
  }

 private:
  std::string Location(const std::string& location) const {
    if (!absl::StartsWith(location, kLocationPrefix)) return location;
    const std::string name = location.substr(sizeof(kLocationPrefix) - 1);
    const auto found = graph_.index.find(name);
    const bool is_there = keep_.fetched.count(name) > 0 || keep_.targets.count(name) > 0;
    if (found == graph_.index.end() || is_there) return location;
    const Output* output = Find(found->second);
    return output == nullptr ? location : absl::StrCat(kLocationPrefix, output->fusion->name);
  }

  const IndexedGraph& graph_;
  const DroppedEdge& dropped_;
  const NodesToKeep& keep_;
  const bool needs_done_;
  std::unordered_map<int, Output> outputs_;
};

// Returns the node that keeps the name of a fused all-reduce, if the name must stay in the graph.
NodeDef Remainder(const NodeDef& old, const Output& output, bool is_fetched) {
  NodeDef node;
  node.set_name(old.name());
  node.set_device(output.fusion->members.front()->kind.device);
  if (is_fetched) {
    node.set_op("Identity");
    node.add_input(Writer::Data(output));
    (*node.mutable_attr())["T"] = old.attr().at("T");
  } else {
    node.set_op("NoOp");
    node.add_input(Writer::Control(output.fusion->name));
  }
  return node;
}

}  // namespace

WrittenGraph WriteGraph(const IndexedGraph& graph, const RegisteredPlan& plan,
                        const Rewriter& rewriter, const NodesToKeep& keep,
                        const Decisions& decisions) {
  const Writer writer(graph, decisions, keep, rewriter.NeedsDone());
  WrittenGraph written;
  GraphDef* rewritten = &written.def;
  *rewritten->mutable_versions() = graph.def->versions();
  *rewritten->mutable_library() = graph.def->library();
  if (graph.def->has_debug_info()) *rewritten->mutable_debug_info() = graph.def->debug_info();
  for (int i = 0; i < graph.def->node_size(); ++i) {
    const NodeDef& old = graph.def->node(i);
    if (const Output* output = writer.Find(i); output != nullptr) {
      const bool is_fetched = keep.fetched.count(old.name()) > 0;
      if (is_fetched || keep.targets.count(old.name()) > 0) {
        *rewritten->add_node() = Remainder(old, *output, is_fetched);
      }
      continue;
    }
    NodeDef* node = rewritten->add_node();
    *node = old;
    writer.Redirect(i, node);
    writer.WaitForDone(old, node);
    const auto waits = decisions.waits.find(i);
    if (waits != decisions.waits.end()) Writer::AddControlInputs(waits->second, node);
  }
  for (const Barrier& barrier : decisions.barriers) {
    NodeDef* node = rewritten->add_node();
    node->set_name(barrier.name);
    node->set_op("NoOp");
    node->set_device(barrier.device);
    std::vector<std::string> inputs;
    for (const int producer : barrier.producers) {
      inputs.push_back(writer.Input(Writer::Control(graph.def->node(producer).name())));
    }
    Writer::AddInputs(inputs, node);
  }
  for (const Fusion& fusion : decisions.fusions) {
    FusedGroup fused{plan, fusion.group, {}, {}};
    std::vector<std::string> inputs;
    for (const PlannedAllReduce* m : fusion.members) {
      const NodeDef& old = graph.def->node(m->node);
      fused.tensor_names.push_back(m->tensor);
      fused.members.push_back(&old);
      for (const std::string& input : old.input()) {
        if (!writer.IsDropped(input, m->node)) inputs.push_back(writer.Input(input));
      }
    }
    for (const std::string& predecessor : fusion.predecessors) {
      inputs.push_back(Writer::Control(predecessor));
    }
    const Kind& kind = fusion.members.front()->kind;
    NodeDef* node = rewritten->add_node();
    node->set_name(fusion.name);
    node->set_device(kind.device);
    Writer::AddInputs(inputs, node);
    writer.MergeAttributes(fusion, node);
    rewriter.Write(fused, node);
    if (!IsWritten(*node)) {
      tensorflow::AddNodeAttr("_tf_libra_tensor_names", fused.tensor_names, node);
      tensorflow::AddNodeAttr("_tf_libra_group", fusion.group, node);
      tensorflow::AddNodeAttr("_tf_libra_function", kind.function, node);
      tensorflow::AddNodeAttr("_tf_libra_num_threads", plan.groups[fusion.group].num_threads, node);
    }
    if (rewriter.NeedsDone()) {
      NodeDef* done = rewritten->add_node();
      done->set_name(Writer::Done(fusion));
      done->set_op("LibraAllReduceDone");
      done->set_device(kind.device);
      done->add_input(Writer::Control(fusion.name));
      tensorflow::AddNodeAttr("tensor_names", fused.tensor_names, done);
      const auto function = fused.members[0]->attr().find("function");
      if (function != fused.members[0]->attr().end()) {
        (*done->mutable_attr())["function"] = function->second;
      }
    }

    ReportedGroup reported;
    reported.group = fusion.group;
    reported.copy = fusion.copy;
    reported.node = fusion.name;
    reported.num_threads = plan.groups[fusion.group].num_threads;
    reported.dtype = tensorflow::DataTypeString(kind.dtype);
    for (const std::string& tensor : fused.tensor_names) {
      reported.tensors.push_back({tensor, "", 0});
    }
    written.groups.push_back(std::move(reported));
  }
  RefreshGroups(*rewritten, &written.groups);
  return written;
}

}  // namespace tf_libra
