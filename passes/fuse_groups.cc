#include "passes/fuse_groups.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "passes/contracted_dag.h"
#include "passes/fusions.h"
#include "passes/graph_writer.h"
#include "passes/indexed_graph.h"
#include "passes/marked_all_reduces.h"

namespace tf_libra {

using tensorflow::GraphDef;

bool FuseGroups(const RegisteredPlan& plan, const Rewriter& rewriter, const NodesToKeep& keep,
                const GraphDef& def, GraphDef* rewritten, GraphReport* report) {
  if (!HasMarkedAllReduce(def)) return false;
  std::vector<Skipped>* skipped = &report->skipped;
  const auto give_up = [&](std::string reason) {
    skipped->push_back({Skipped::Kind::kPlan, plan.id, std::move(reason)});
    return false;
  };
  std::string reason;
  const std::optional<IndexedGraph> graph = IndexGraph(def, &reason);
  if (!graph) return give_up(std::move(reason));

  std::vector<Marked> marked = FindMarked(*graph, plan, rewriter, keep.fed, skipped);
  if (marked.empty()) return false;
  const std::vector<int> all_reduces = FindAllReduces(*graph);
  const std::vector<bool> between = NodesBetween(*graph, all_reduces);
  if (!ContextsAreApart(*graph, all_reduces, between)) {
    return give_up("all-reduces depend on others in another branch or loop");
  }
  if (!FindCopies(*graph, between, &marked, &reason)) return give_up(std::move(reason));
  ReportMissing(plan, marked, skipped);

  std::vector<int> copy_of(def.node_size(), -1);
  for (const Marked& m : marked) copy_of[m.node] = m.copy;
  ContractedDag dag = PathsBetween(*graph, between, [&](const Fanin& fanin, size_t to) {
    return fanin.port < 0 && copy_of[to] >= 0 && copy_of[fanin.node] == copy_of[to];
  });
  const NodeNames names(*graph, plan.id);
  std::vector<Fusion> fusions = DecideFusions(*graph, marked, &dag, names, skipped);
  std::vector<int> staying;
  for (const int node : all_reduces) {
    if (copy_of[node] < 0) staying.push_back(node);
  }
  const std::map<int, std::string> waits =
      OrderAllReduces(*graph, staying, &dag, &fusions, skipped);
  std::vector<Barrier> barriers;
  if (plan.after_backward) {
    barriers = WaitForBackward(*graph, &dag, names, &fusions, skipped);
  }

  GraphDef result;
  GraphReport written;
  WriteGraph(*graph, plan, rewriter, keep.fetched, fusions, barriers, waits, &result, &written);
  // The steps above close no cycle. Should one of them ever, the graph that was there is right.
  if (!IsLive(result, &reason)) {
    LOG(ERROR) << "TF-Libra: plan " << plan.id << " closed a cycle: " << reason;
    return give_up(absl::StrCat("would have closed a cycle: ", reason));
  }
  report->groups = std::move(written.groups);
  *rewritten = std::move(result);
  return true;
}

}  // namespace tf_libra
