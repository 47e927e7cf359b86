// The order of gathers and all-reduces in graphs with sharded updates.

#ifndef TF_LIBRA_PASSES_GATHER_ORDER_H_
#define TF_LIBRA_PASSES_GATHER_ORDER_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "passes/owned_updates.h"
#include "passes/plan_registry.h"
#include "passes/rewrite_report.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// An assignment of a variable, and the tensor of its group on whose gradient it depends.
struct OwnedAssign {
  int node;
  int tensor;
};

struct ShardedGroup {
  ReportedGroup* reported;
  int root;                          // the all-reduce
  std::vector<OwnedAssign> assigns;  // which the group's gathers follow
};

// Assignments whose weights are gathered together, after the all-reduce `root`.
struct Gather {
  int root;
  std::vector<int> assigns;
  int num_threads = 0;  // 0: as many as those of `root`
};

// Returns the gathers of the weights that `groups` update: by `planned`, in forward order, or one
// per group, in the order of `groups`, if that is empty.
std::vector<Gather> GathersOf(const std::vector<const ShardedGroup*>& groups,
                              const std::vector<GatherGroup>& planned);

// Finds the assignments that the gathers of each group follow; groups are ordered by copy. Returns
// the copy of each assignment. All that touches a variable is ordered by paths, unless it only
// reads, so that the order of nodes, `position`, shows what runs after an assignment.
//
// An assignment that depends on no gradient, such as weight decay, belongs to the first update of
// its variable that runs after it, or else to the last one.
std::unordered_map<int, int> FindAssignments(const OwnedUpdates& updates,
                                             const std::unordered_map<int, int64_t>& parts,
                                             const tensorflow::GraphDef& graph,
                                             const std::vector<int>& position,
                                             std::vector<ShardedGroup>* groups);

// Finds the all-reduces of each copy of the step; of a graph with one copy, all all-reduces.
// Returns false if one belongs to no copy.
bool ReducesByCopy(const GraphReport& report, const tensorflow::GraphDef& graph,
                   std::vector<std::vector<std::string>>* reduces);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_GATHER_ORDER_H_
