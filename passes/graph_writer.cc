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

namespace tf_libra {
namespace {

using tensorflow::AttrValue;
using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::TensorId;

constexpr char kLocationPrefix[] = "loc:@";

// Where the output of a fused all-reduce is to be found.
struct Output {
  const Fusion* fusion;
  int port;
};

class Writer {
 public:
  Writer(const IndexedGraph& graph, const std::vector<Fusion>& fusions, bool needs_done)
      : graph_(graph), needs_done_(needs_done) {
    for (const Fusion& fusion : fusions) {
      int port = 0;
      for (const Marked* m : fusion.members) outputs_[m->node] = {&fusion, port++};
    }
  }

  const Output* Find(int node) const {
    const auto found = outputs_.find(node);
    return found == outputs_.end() ? nullptr : &found->second;
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
    if (output.port == 0) return output.fusion->name;
    return absl::StrCat(output.fusion->name, ":", output.port);
  }

  static std::string Done(const Fusion& fusion) { return absl::StrCat(fusion.name, "_done"); }

  // What reads a fused all-reduce waits for the op that tells of its end, else nothing would run
  // that.
  void WaitForDone(const NodeDef& old, NodeDef* node) const {
    if (!needs_done_ || old.op() == "Merge" || old.op() == "RefMerge") return;
    for (const std::string& input : old.input()) {
      const TensorId id = tensorflow::ParseTensorName(input);
      const Output* output = Find(graph_.index.at(id.node()));
      if (output == nullptr || id.index() == tensorflow::Graph::kControlSlot) continue;
      AddControlInput(Done(*output->fusion), node);
    }
  }

  // A node that stays: its inputs and colocations follow the all-reduces that went.
  void Redirect(const std::unordered_set<std::string>& still_there, NodeDef* node) const {
    bool changed = false;
    std::vector<std::string> inputs;
    for (const std::string& input : node->input()) {
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
      location = Location(location, still_there);
    }
  }

  // The attributes that start with '_', which belong to no op in particular.
  void MergeAttributes(const Fusion& fusion, const std::unordered_set<std::string>& still_there,
                       NodeDef* node) const {
    const NodeDef& first = graph_.def->node(fusion.members[0]->node);
    const auto is_everywhere = [&](const std::string& name, auto matches) {
      return std::all_of(fusion.members.begin(), fusion.members.end(), [&](const Marked* m) {
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
        for (const Marked* m : fusion.members) {
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
    for (const Marked* m : fusion.members) {
      const auto& attrs = graph_.def->node(m->node).attr();
      const auto attr = attrs.find("_class");
      if (attr == attrs.end()) continue;
      for (const std::string& old : attr->second.list().s()) {
        const std::string location = Location(old, still_there);
        if (seen.insert(location).second) locations.mutable_list()->add_s(location);
      }
    }
    if (locations.list().s_size() > 0) (*node->mutable_attr())["_class"] = locations;
    for (const Marked* m : fusion.members) {
      *node->mutable_experimental_debug_info()->add_original_node_names() =
          graph_.def->node(m->node).name();
    }
  }

  static void AddControlInput(const std::string& from, NodeDef* node) {
    const std::string input = Control(from);
    const auto& inputs = node->input();
    if (std::find(inputs.begin(), inputs.end(), input) == inputs.end()) node->add_input(input);
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
  std::string Location(const std::string& location,
                       const std::unordered_set<std::string>& still_there) const {
    if (!absl::StartsWith(location, kLocationPrefix)) return location;
    const std::string name = location.substr(sizeof(kLocationPrefix) - 1);
    const auto found = graph_.index.find(name);
    if (found == graph_.index.end() || still_there.count(name) > 0) return location;
    const Output* output = Find(found->second);
    return output == nullptr ? location : absl::StrCat(kLocationPrefix, output->fusion->name);
  }

  const IndexedGraph& graph_;
  const bool needs_done_;
  std::unordered_map<int, Output> outputs_;
};

}  // namespace

void WriteGraph(const IndexedGraph& graph, const RegisteredPlan& plan, const Rewriter& rewriter,
                const std::unordered_set<std::string>& fetched, const std::vector<Fusion>& fusions,
                const std::vector<Barrier>& barriers, const std::map<int, std::string>& waits,
                GraphDef* rewritten, GraphReport* report) {
  const Writer writer(graph, fusions, rewriter.NeedsDone());
  *rewritten->mutable_versions() = graph.def->versions();
  *rewritten->mutable_library() = graph.def->library();
  if (graph.def->has_debug_info()) *rewritten->mutable_debug_info() = graph.def->debug_info();
  for (int i = 0; i < graph.def->node_size(); ++i) {
    const NodeDef& old = graph.def->node(i);
    const Output* output = writer.Find(i);
    if (output == nullptr) {
      NodeDef* node = rewritten->add_node();
      *node = old;
      writer.Redirect(fetched, node);
      writer.WaitForDone(old, node);
      const auto wait = waits.find(i);
      if (wait != waits.end()) Writer::AddControlInput(wait->second, node);
    } else if (fetched.count(old.name()) > 0) {
      NodeDef* identity = rewritten->add_node();
      identity->set_name(old.name());
      identity->set_op("Identity");
      identity->set_device(old.device());
      identity->add_input(Writer::Data(*output));
      (*identity->mutable_attr())["T"] = old.attr().at("T");
    }
  }
  for (const Barrier& barrier : barriers) {
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
  for (const Fusion& fusion : fusions) {
    FusedGroup fused{plan, fusion.group, {}, {}, {}};
    std::vector<std::string> inputs;
    for (const Marked* m : fusion.members) {
      const NodeDef& old = graph.def->node(m->node);
      fused.tensor_names.push_back(m->tensor);
      fused.members.push_back(&old);
      const int producer = graph.fanins[m->node][0].node;
      fused.producer_devices.push_back(graph.def->node(producer).device());
      for (const std::string& input : old.input()) {
        const TensorId id = tensorflow::ParseTensorName(input);
        const Output* output = writer.Find(graph.index.at(id.node()));
        const bool dropped = id.index() == tensorflow::Graph::kControlSlot && output != nullptr &&
                             output->fusion->copy == fusion.copy;
        if (!dropped) inputs.push_back(writer.Input(input));
      }
    }
    for (const std::string& predecessor : fusion.predecessors) {
      inputs.push_back(Writer::Control(predecessor));
    }
    NodeDef* node = rewritten->add_node();
    node->set_name(fusion.name);
    node->set_device(fused.members[0]->device());
    Writer::AddInputs(inputs, node);
    writer.MergeAttributes(fusion, fetched, node);
    rewriter.Write(fused, node);
    if (rewriter.NeedsDone()) {
      NodeDef* done = rewritten->add_node();
      done->set_name(Writer::Done(fusion));
      done->set_op("LibraAllReduceDone");
      done->set_device(fused.members[0]->device());
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
    reported.dtype = tensorflow::DataTypeString(fused.members[0]->attr().at("T").type());
    for (const std::string& tensor : fused.tensor_names)
      reported.tensors.push_back({tensor, "", 0});
    report->groups.push_back(std::move(reported));
  }
  RefreshReport(*rewritten, report);
}

}  // namespace tf_libra
