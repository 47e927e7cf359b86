#include "passes/row_reads.h"

#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "passes/indexed_graph.h"
#include "passes/shard_writer.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_libra {
namespace {

using tensorflow::GraphDef;
using tensorflow::NodeDef;

struct RowRead {
  int read;
  int gather;
};

bool IsZero(const NodeDef& node) {
  const auto value = node.attr().find("value");
  tensorflow::Tensor number;
  if (node.op() != "Const" || value == node.attr().end() ||
      !number.FromProto(value->second.tensor()) || number.NumElements() != 1) {
    return false;
  }
  if (number.dtype() == tensorflow::DT_INT32) return number.flat<int32_t>()(0) == 0;
  return number.dtype() == tensorflow::DT_INT64 && number.flat<int64_t>()(0) == 0;
}

// Returns whether the node gathers along the first dimension, one row for each index.
bool GathersRows(const NodeDef& node, const std::vector<Fanin>& fanins, const GraphDef& graph) {
  if (node.op() != "GatherV2" || fanins.size() < 3) return false;
  const auto batch_dims = node.attr().find("batch_dims");
  if (batch_dims != node.attr().end() && batch_dims->second.i() != 0) return false;
  const auto ids = node.attr().find("Tindices");
  if (ids == node.attr().end() || node.attr().count("Tparams") == 0) return false;
  const tensorflow::DataType type = ids->second.type();
  return (type == tensorflow::DT_INT32 || type == tensorflow::DT_INT64) &&
         IsZero(graph.node(fanins[2].node));
}

// Returns the node that outputs the resource of a node's first input; -1 without one.
int ResourceOf(int node, const IndexedGraph& graph) {
  for (;;) {
    if (graph.fanins[node].empty() || graph.fanins[node][0].port < 0) return -1;
    node = graph.fanins[node][0].node;
    if (graph.def->node(node).op() != "Identity") return node;
  }
}

// Returns the variables of which the graph uses single rows in place. TensorFlow copies them at
// each read of the value in any case.
std::unordered_set<int> FindTables(const IndexedGraph& graph) {
  std::unordered_set<int> tables;
  for (int i = 0; i < graph.def->node_size(); ++i) {
    const std::string& op = graph.def->node(i).op();
    if (absl::StartsWith(op, "ResourceScatter") || absl::StartsWith(op, "ResourceSparseApply") ||
        op == "ResourceGather") {
      tables.insert(ResourceOf(i, graph));
    }
  }
  tables.erase(-1);
  return tables;
}

std::vector<RowRead> FindRowReads(const NodesToKeep& keep, const IndexedGraph& graph) {
  const std::unordered_set<int> tables = FindTables(graph);
  if (tables.empty()) return {};
  std::vector<int> num_readers(graph.fanins.size(), 0);
  for (const std::vector<Fanin>& fanins : graph.fanins) {
    for (const Fanin& fanin : fanins) num_readers[fanin.node] += fanin.port >= 0;
  }
  std::vector<RowRead> found;
  for (int i = 0; i < graph.def->node_size(); ++i) {
    const NodeDef& gather = graph.def->node(i);
    if (!GathersRows(gather, graph.fanins[i], *graph.def)) continue;
    const int from = graph.fanins[i][0].node;
    const NodeDef& read = graph.def->node(from);
    if (read.op() == "ReadVariableOp" && num_readers[from] == 1 &&
        tables.count(ResourceOf(from, graph)) > 0 && keep.fetched.count(read.name()) == 0 &&
        keep.fed.count(read.name()) == 0 && keep.fed.count(gather.name()) == 0 &&
        read.device() == gather.device() && !absl::StrContains(read.device(), "GPU") &&
        graph.contexts[from] == graph.contexts[i]) {
      found.push_back({from, i});
    }
  }
  return found;
}

NodeDef WriteGather(const NodeDef& read, const NodeDef& gather) {
  NodeDef written;
  written.set_name(gather.name());
  written.set_op("ResourceGather");
  written.set_device(gather.device());
  written.add_input(read.input(0));
  written.add_input(gather.input(1));
  AddControl(std::string(tensorflow::ParseTensorName(gather.input(2)).node()), &written);
  for (const NodeDef* node : {&read, &gather}) {
    for (const std::string& input : node->input()) {
      if (input[0] == '^' && input.substr(1) != read.name()) AddControl(input.substr(1), &written);
    }
  }
  tensorflow::AddNodeAttr("dtype", gather.attr().at("Tparams"), &written);
  tensorflow::AddNodeAttr("Tindices", gather.attr().at("Tindices"), &written);
  tensorflow::AddNodeAttr("batch_dims", 0, &written);
  tensorflow::AddNodeAttr("validate_indices", true, &written);
  return written;
}

}  // namespace

int ReadRowsInPlace(const NodesToKeep& keep, GraphDef* graph) {
  std::string reason;
  const std::optional<IndexedGraph> indexed = IndexGraph(*graph, &reason);
  if (!indexed) return 0;
  const std::vector<RowRead> found = FindRowReads(keep, *indexed);
  if (found.empty()) return 0;
  GraphDef written = *graph;
  for (const auto& [read, gather] : found) {
    *written.mutable_node(gather) = WriteGather(graph->node(read), graph->node(gather));
    NodeDef* const after = written.mutable_node(read);
    after->set_op("NoOp");
    after->clear_attr();
    after->clear_input();
    AddControl(graph->node(gather).name(), after);
  }
  if (!IsLive(written, &reason)) {
    VLOG(1) << "rows stay parts of values that are read: " << reason;
    return 0;
  }
  *graph = std::move(written);
  return static_cast<int>(found.size());
}

}  // namespace tf_libra
