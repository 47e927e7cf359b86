#include "passes/rewrite_report.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/lanes/json.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace tf_libra {
namespace {

template <typename Items, typename ToText>
std::string Array(const Items& items, ToText to_text) {
  return absl::StrCat("[",
                      absl::StrJoin(items, ", ",
                                    [&](std::string* out, const auto& item) {
                                      absl::StrAppend(out, to_text(item));
                                    }),
                      "]");
}

std::string TensorJson(const ReportedTensor& tensor) {
  return absl::StrCat("{\"name\": ", QuotedJson(tensor.name),
                      ", \"producer\": ", QuotedJson(tensor.producer), ", \"port\": ", tensor.port,
                      "}");
}

std::string GroupJson(const ReportedGroup& group) {
  return absl::StrCat(
      "{\"group\": ", group.group, ", \"copy\": ", group.copy,
      ", \"node\": ", QuotedJson(group.node), ", \"num_threads\": ", group.num_threads,
      ", \"dtype\": ", QuotedJson(group.dtype), ", \"tensors\": ", Array(group.tensors, TensorJson),
      ", \"control_inputs\": ", Array(group.control_inputs, QuotedJson),
      ", \"is_sharded\": ", group.is_sharded ? "true" : "false",
      ", \"whole\": ", QuotedJson(group.whole), "}");
}

std::string SkippedJson(const Skipped& skipped) {
  const char* key = skipped.kind == Skipped::Kind::kNode     ? "node"
                    : skipped.kind == Skipped::Kind::kTensor ? "tensor"
                                                             : "plan";
  return absl::StrCat("{\"", key, "\": ", QuotedJson(skipped.name),
                      ", \"reason\": ", QuotedJson(skipped.reason), "}");
}

std::string GraphJson(const std::string& graph_id, const GraphReport& report) {
  const char* in_force = report.outcome == Outcome::kUnknown  ? "null"
                         : report.outcome == Outcome::kActive ? "true"
                                                              : "false";
  return absl::StrCat("{\"graph\": ", QuotedJson(graph_id), ", \"serial\": ", report.serial,
                      ", \"in_force\": ", in_force,
                      ", \"groups\": ", Array(report.groups, GroupJson),
                      ", \"exchanged\": ", Array(report.exchanged, QuotedJson),
                      ", \"fused_updates\": ", report.num_fused_updates,
                      ", \"left\": ", Array(report.left, QuotedJson),
                      ", \"skipped\": ", Array(report.skipped, SkippedJson), "}");
}

}  // namespace

void RefreshGroups(const tensorflow::GraphDef& graph, std::vector<ReportedGroup>* groups) {
  std::unordered_map<std::string, const tensorflow::NodeDef*> nodes;
  for (const tensorflow::NodeDef& node : graph.node()) nodes.emplace(node.name(), &node);
  for (ReportedGroup& group : *groups) {
    const auto found = nodes.find(group.node);
    if (found == nodes.end()) continue;
    group.control_inputs.clear();
    size_t next_tensor = 0;
    for (const std::string& input : found->second->input()) {
      const tensorflow::TensorId id = tensorflow::ParseTensorName(input);
      if (id.index() == tensorflow::Graph::kControlSlot) {
        group.control_inputs.emplace_back(id.node());
      } else if (next_tensor < group.tensors.size()) {
        ReportedTensor& tensor = group.tensors[next_tensor++];
        tensor.producer = std::string(id.node());
        tensor.port = id.index();
      }
    }
  }
}

RewriteReports& RewriteReports::Global() {
  static RewriteReports* const reports = new RewriteReports;
  return *reports;
}

void RewriteReports::Record(const std::string& plan_id, const std::string& graph_id,
                            GraphReport report) {
  std::lock_guard<std::mutex> lock(mutex_);
  report.serial = ++last_serial_;
  reports_[plan_id][graph_id] = std::move(report);
}

void RewriteReports::Confirm(const std::string& plan_id, const std::string& graph_id,
                             ExecutedGraph executed) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [found, is_new] = reports_[plan_id].emplace(graph_id, GraphReport{});
  GraphReport& report = found->second;
  if (is_new) {
    report.skipped.push_back(
        {Skipped::Kind::kPlan, plan_id,
         "Grappler has not handed this graph to the pass: another of its optimizers failed, see "
         "its errors, or was too slow"});
  }
  const bool all_there = std::all_of(
      report.groups.begin(), report.groups.end(),
      [&](const ReportedGroup& group) { return executed.written.count(group.node) > 0; });
  if (!all_there) {
    report.skipped.push_back(
        {Skipped::Kind::kPlan, plan_id,
         "TensorFlow did not keep what the pass wrote: Grappler failed or took "
         "too long, see its warnings"});
  }
  report.outcome = all_there && !report.groups.empty() ? Outcome::kActive : Outcome::kLost;
  report.left = std::move(executed.left);
  report.serial = ++last_serial_;
}

GraphReport RewriteReports::Find(const std::string& plan_id, const std::string& graph_id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto plan = reports_.find(plan_id);
  if (plan == reports_.end()) return {};
  const auto graph = plan->second.find(graph_id);
  return graph == plan->second.end() ? GraphReport{} : graph->second;
}

void RewriteReports::Erase(const std::string& plan_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  reports_.erase(plan_id);
}

std::string RewriteReports::ToJson(const std::string& plan_id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = reports_.find(plan_id);
  static const auto* const kNone = new std::map<std::string, GraphReport>;
  const auto& graphs = found == reports_.end() ? *kNone : found->second;
  return absl::StrCat(
      "{\"plan\": ", QuotedJson(plan_id), ", \"graphs\": ",
      Array(graphs, [](const auto& entry) { return GraphJson(entry.first, entry.second); }), "}");
}

}  // namespace tf_libra
