#include "passes/libra_optimizer.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "passes/async_all_reduce_splitter.h"
#include "passes/backward_order.h"
#include "passes/control_edges.h"
#include "passes/indexed_graph.h"
#include "passes/libra_rewrite.h"
#include "passes/pending_all_reduces.h"
#include "passes/plan_registry.h"
#include "passes/rewrite_report.h"
#include "passes/rewriter.h"
#include "passes/row_reads.h"
#include "passes/update_fusion.h"
#include "passes/update_sharding.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h"

namespace tf_libra {
namespace {

NodesToKeep KeptNodes(const tensorflow::grappler::GrapplerItem& item) {
  NodesToKeep keep;
  for (const std::string& name : item.fetch) {
    const tensorflow::TensorId id = tensorflow::ParseTensorName(name);
    const bool is_target = id.index() == tensorflow::Graph::kControlSlot;
    (is_target ? keep.targets : keep.fetched).emplace(id.node());
  }
  // Above all the control outputs of a function: every stateful op in it is one.
  for (const std::string& name : item.NodesToPreserve()) {
    const std::string node(tensorflow::ParseTensorName(name).node());
    if (keep.fetched.count(node) == 0) keep.targets.insert(node);
  }
  for (const auto& feed : item.feed) {
    keep.fed.emplace(tensorflow::ParseTensorName(feed.first).node());
  }
  return keep;
}

// Returns the rewritten copies of the step. With `one_by_one`, each gradient is a group of its own:
// the profile of a measured plan needs the time at which each is produced.
std::vector<OrderedStep> OrderedSteps(const GraphReport& report, bool one_by_one) {
  std::map<int, OrderedStep> copies;
  std::map<int, int> last_group;  // of each copy
  std::set<std::pair<int, std::string>> produced;
  for (const ReportedGroup& group : report.groups) {
    OrderedStep& step = copies[group.copy];
    step.all_reduces.push_back(group.node);
    const auto [last, is_first] = last_group.emplace(group.copy, group.group);
    bool is_next = is_first || last->second != group.group;
    last->second = group.group;
    for (const ReportedTensor& tensor : group.tensors) {
      // A split tensor counts for the group of its first part.
      if (!produced.emplace(group.copy, tensor.producer).second) continue;
      if (is_next || one_by_one) step.producers.emplace_back();
      step.producers.back().push_back(tensor.producer);
      is_next = false;
    }
  }
  std::vector<OrderedStep> steps;
  for (auto& copy : copies) steps.push_back(std::move(copy.second));
  return steps;
}

// Orders all copies of the step that `report` speaks of, in one pass over the graph.
void KeepBackwardOrder(const RegisteredPlan& plan, tensorflow::GraphDef* graph,
                       GraphReport* report) {
  std::string reason;
  const std::optional<IndexedGraph> indexed = IndexGraph(*graph, &reason);
  if (!indexed) {
    report->skipped.push_back(
        {Skipped::Kind::kPlan, plan.id, absl::StrCat("backward order was not kept: ", reason)});
    return;
  }
  const std::vector<ControlEdge> waits =
      KeepBackwardOrder(OrderedSteps(*report, plan.after_backward), *indexed);
  // These edges close no cycle. If they did, the graph without them would be right, too.
  if (CloseCycle(waits, *indexed)) {
    report->skipped.push_back({Skipped::Kind::kPlan, plan.id,
                               "backward order would have closed a cycle and was not kept"});
    return;
  }
  const std::string& first = report->groups[0].node;
  WriteControlEdges(waits, *indexed, absl::StrCat(first.substr(0, first.rfind('/')), "/produced_"),
                    graph);
}

std::vector<std::string> Nodes(const GraphReport& report) {
  std::vector<std::string> names;
  for (const ReportedGroup& group : report.groups) names.push_back(group.node);
  return names;
}

// Logs one line for users, and the rest at a higher verbosity.
void LogSkipped(const std::string& plan_id, const std::string& graph_id,
                const GraphReport& report) {
  if (report.skipped.empty()) return;
  const Skipped& first = report.skipped.front();
  LOG(WARNING) << "TF-Libra: plan " << plan_id << " does not fit graph " << graph_id
               << " in all parts: " << first.name << ": " << first.reason
               << (report.skipped.size() > 1
                       ? absl::StrCat(" (and ", report.skipped.size() - 1, " more)")
                       : "");
  for (const Skipped& skipped : report.skipped) {
    VLOG(1) << "plan " << plan_id << ", graph " << graph_id << ": " << skipped.name << ": "
            << skipped.reason;
  }
}

}  // namespace

absl::Status LibraOptimizer::Init(const tensorflow::RewriterConfig_CustomGraphOptimizer* config) {
  const auto read = [config](const char* key) {
    if (config == nullptr) return std::string();
    const auto found = config->parameter_map().find(key);
    return found == config->parameter_map().end() ? std::string() : found->second.s();
  };
  plan_id_ = read("plan");
  digest_ = read("digest");
  op_ = read("op");
  plan_ = PlanRegistry::Global().Find(plan_id_);
  sharding_ = UpdateShardings::Global().Find(read("sharding"));
  return absl::OkStatus();
}

absl::Status LibraOptimizer::Optimize(tensorflow::grappler::Cluster* cluster,
                                      const tensorflow::grappler::GrapplerItem& item,
                                      tensorflow::GraphDef* optimized_graph) {
  RewriteReports& reports = RewriteReports::Global();
  GraphReport last = reports.Find(plan_id_, item.id);
  const bool is_first = last.groups.empty() && last.skipped.empty();

  GraphReport report;
  bool changed = false;
  std::string no_rewriter;
  const std::unique_ptr<Rewriter> rewriter = MakeRewriter(op_, &no_rewriter);
  const auto refuse = [&](std::string reason) {
    if (!HasPendingAllReduce(item.graph)) return;
    report.skipped.push_back({Skipped::Kind::kPlan, plan_id_, std::move(reason)});
  };
  if (plan_ == nullptr) {
    refuse("is not registered");
  } else if (plan_->digest != digest_) {
    refuse(absl::StrCat("is registered with digest '", plan_->digest, "', not '", digest_, "'"));
  } else if (rewriter == nullptr) {
    refuse(no_rewriter);
  } else {
    changed = FuseGroups(*plan_, *rewriter, KeptNodes(item), item.graph, optimized_graph, &report);
    if (changed) KeepBackwardOrder(*plan_, optimized_graph, &report);
    if (changed && sharding_ != nullptr) {
      const NodesToKeep keep = KeptNodes(item);
      const ShardedNodes sharded =
          ShardUpdates(*sharding_, plan_->gathers, keep, &report, optimized_graph);
      report.num_fused_updates = FuseUpdates(sharded, keep, optimized_graph);
    } else if (changed) {
      ReadRowsInPlace(KeptNodes(item), optimized_graph);
    }
    if (changed && rewriter->SplitsStartDone()) SplitIntoStartDone(Nodes(report), optimized_graph);
  }

  const bool refused = plan_ == nullptr || plan_->digest != digest_ || rewriter == nullptr;
  if (changed || refused || is_first) {
    LogSkipped(plan_id_, item.id, report);
    // A text: not every TensorFlow exports the operator for this number.
    VLOG(1) << "plan " << plan_id_ << ", graph " << item.id << ": wrote "
            << absl::StrCat(report.groups.size()) << " all-reduces";
    if (changed || !report.skipped.empty()) reports.Record(plan_id_, item.id, std::move(report));
  } else {
    // Grappler runs each optimizer more than once; in between, others may rename what feeds ours.
    RefreshGroups(item.graph, &last.groups);
    reports.Record(plan_id_, item.id, std::move(last));
  }
  return changed ? absl::OkStatus() : absl::AbortedError("nothing to fuse");
}

REGISTER_GRAPH_OPTIMIZER_AS(LibraOptimizer, kOptimizerName);

}  // namespace tf_libra
