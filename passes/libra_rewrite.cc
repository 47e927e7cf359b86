#include "passes/libra_rewrite.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "passes/all_reduce_grouping.h"
#include "passes/contracted_dag.h"
#include "passes/graph_writer.h"
#include "passes/indexed_graph.h"
#include "passes/pending_all_reduces.h"
#include "passes/split_tensors.h"

namespace tf_libra {

using tensorflow::GraphDef;

namespace {

constexpr int kNoCopy = -1;

bool HasWritten(const GraphDef& graph) {
  return std::any_of(graph.node().begin(), graph.node().end(), IsWritten);
}

}  // namespace

bool FuseGroups(const RegisteredPlan& plan, const Rewriter& rewriter, const NodesToKeep& keep,
                const GraphDef& traced, GraphDef* rewritten, GraphReport* report) {
  // All-reduces that an earlier run left alone stay: it decided with the whole step at hand.
  if (!HasPendingAllReduce(traced) || HasWritten(traced)) return false;
  GraphDef of_parts;
  if (CutsTensors(plan, rewriter)) {
    of_parts = traced;
    CutTensors(plan, keep.fed, &of_parts);
  }
  const GraphDef& def = of_parts.node_size() > 0 ? of_parts : traced;
  std::vector<Skipped>* skipped = &report->skipped;
  const auto give_up = [&](std::string reason) {
    skipped->push_back({Skipped::Kind::kPlan, plan.id, std::move(reason)});
    return false;
  };
  std::string reason;
  const std::optional<IndexedGraph> graph = IndexGraph(def, &reason);
  if (!graph) return give_up(std::move(reason));

  std::vector<PlannedAllReduce> marked =
      FindPlannedAllReduces(*graph, plan, rewriter, keep.fed, skipped);
  if (marked.empty()) return false;
  const std::vector<int> all_reduces = FindAllReduces(*graph);
  std::vector<bool> between = NodesBetween(*graph, all_reduces);
  FindOutOfStep(*graph, &marked);
  if (!FindCopies(*graph, between, &marked, &reason)) return give_up(std::move(reason));
  ReportMissing(*graph, plan, marked, skipped);

  std::vector<int> copy_of(def.node_size(), kNoCopy);
  for (const PlannedAllReduce& m : marked) copy_of[m.node] = m.copy;
  std::vector<int> staying;
  std::vector<bool> is_ordered(def.node_size(), false);
  for (const int node : all_reduces) {
    if (copy_of[node] == kNoCopy) staying.push_back(node);
    is_ordered[node] = true;
  }
  Decisions decisions;
  decisions.dropped = [&](const Fanin& from, int to) {
    if (from.port >= 0 || !is_ordered[from.node] || !is_ordered[to]) return false;
    const bool one_stays = copy_of[from.node] == kNoCopy || copy_of[to] == kNoCopy;
    return one_stays ? graph->contexts[from.node] == graph->contexts[to]
                     : copy_of[from.node] == copy_of[to];
  };
  // If contexts differ, order also follows nodes that lie between no all-reduces yet.
  if (!ShareContext(*graph, all_reduces)) between.assign(between.size(), true);
  ContractedDag dag = PathsBetween(*graph, between, decisions.dropped);
  const NodeNames names(*graph, plan.id);
  decisions.fusions = DecideFusions(*graph, marked, &dag, names, skipped);
  std::optional<ControlEdges> waits =
      OrderAllReduces(*graph, staying, decisions.dropped, &dag, &decisions.fusions, skipped);
  if (!waits) return give_up("has no order that branches and loops would keep");
  decisions.waits = *std::move(waits);
  if (plan.after_backward) {
    decisions.barriers = WaitForBackward(*graph, &dag, names, &decisions.fusions, skipped);
  }

  WrittenGraph written = WriteGraph(*graph, plan, rewriter, keep, decisions);
  // The steps above close no cycle. Should one of them ever, the graph that was there is right.
  if (!IsLive(written.def, &reason)) {
    LOG(ERROR) << "TF-Libra: plan " << plan.id << " closed a cycle: " << reason;
    return give_up(absl::StrCat("would have closed a cycle: ", reason));
  }
  report->groups = std::move(written.groups);
  *rewritten = std::move(written.def);
  return true;
}

}  // namespace tf_libra
