// Writes the graph in which all-reduces are fused.

#ifndef TF_LIBRA_PASSES_GRAPH_WRITER_H_
#define TF_LIBRA_PASSES_GRAPH_WRITER_H_

#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "passes/fusions.h"
#include "passes/indexed_graph.h"
#include "passes/plan_registry.h"
#include "passes/rewrite_report.h"
#include "passes/rewriter.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Writes `fusions` and `barriers` in place of the all-reduces they are made of, and lets the rest
// of the graph follow. `waits` are additional control inputs of nodes that stay; all-reduces in
// `fetched` leave an Identity under their name. Adds the fused groups to `report`.
void WriteGraph(const IndexedGraph& graph, const RegisteredPlan& plan, const Rewriter& rewriter,
                const std::unordered_set<std::string>& fetched, const std::vector<Fusion>& fusions,
                const std::vector<Barrier>& barriers, const std::map<int, std::string>& waits,
                tensorflow::GraphDef* rewritten, GraphReport* report);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_GRAPH_WRITER_H_
