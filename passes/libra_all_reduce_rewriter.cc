#include "passes/libra_all_reduce_rewriter.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "passes/node_attributes.h"
#include "passes/pending_all_reduces.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_libra {
namespace {

int FirstLane(const RegisteredPlan& plan, int stream) {
  std::map<int, int> num_lanes;  // of the streams before
  for (const PlanGroup& group : plan.groups) {
    if (group.stream < stream) {
      num_lanes[group.stream] = std::max(num_lanes[group.stream], group.num_threads);
    }
  }
  int first_lane = 0;
  for (const auto& [before, lanes] : num_lanes) first_lane += lanes;
  return first_lane;
}

}  // namespace

void LibraAllReduceRewriter::Write(const FusedGroup& fused, tensorflow::NodeDef* node) const {
  const PlanGroup& group = fused.plan.groups[fused.group];
  const tensorflow::NodeDef& first = *fused.members.front();
  node->set_op("LibraAllReduce");
  CopyAttributes(first, {"T", "E", "reduction", "function", "error_feedback"}, node);
  tensorflow::AddNodeAttr("N", static_cast<int>(fused.members.size()), node);
  tensorflow::AddNodeAttr("tensor_names", fused.tensor_names, node);
  tensorflow::AddNodeAttr("num_threads", group.num_threads, node);
  tensorflow::AddNodeAttr("group", fused.group, node);
  tensorflow::AddNodeAttr("stream", group.stream, node);
  tensorflow::AddNodeAttr("first_lane", FirstLane(fused.plan, group.stream), node);
  tensorflow::AddNodeAttr("plan", fused.plan.id, node);
  if (!fused.plan.wire_dtype.empty() && !HasRowsOfRanks(first)) {
    tensorflow::AddNodeAttr("wire_dtype", fused.plan.wire_dtype, node);
  }
  std::vector<int64_t> part_starts;
  for (const tensorflow::NodeDef* member : fused.members) part_starts.push_back(PartStart(*member));
  const auto is_part = [](int64_t start) { return start != kWholeTensor; };
  if (std::any_of(part_starts.begin(), part_starts.end(), is_part)) {
    tensorflow::AddNodeAttr("part_starts", part_starts, node);
  }
}

TF_LIBRA_REGISTER_REWRITER("LibraAllReduce", "", LibraAllReduceRewriter);

}  // namespace tf_libra
