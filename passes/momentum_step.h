// A training step for tests of sharded updates.
#ifndef TF_LIBRA_PASSES_MOMENTUM_STEP_H_
#define TF_LIBRA_PASSES_MOMENTUM_STEP_H_

#include <string>
#include <utility>
#include <vector>

#include "passes/testing.h"
#include "passes/update_sharding.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_libra {
namespace testing {

// One step of momentum: m = 0.9 m + g; w -= m.
struct MomentumStep {
  Graph graph;
  GraphReport report;
  NodesToKeep keep;
  UpdateSharding sharding{{{"w", 100}}, {1}};
  std::vector<GatherGroup> gathers;

  MomentumStep() {
    for (const int index : {0, 1}) {
      tensorflow::AddNodeAttr("index", index, graph.Add("_Arg", index == 0 ? "w" : "m"));
    }
    graph.Add("Const", "decay");
    tensorflow::AddNodeAttr("plan", "p", graph.Reduce("reduce", "gradient", "w"));
    graph.AddFloat("ReadVariableOp", "read_m", {"m"});
    for (const auto& [name, inputs] :
         {std::pair<std::string, Inputs>{"decayed", {"read_m", "decay"}},
          {"new", {"decayed", "reduce"}}}) {
      graph.AddFloat(name == "new" ? "AddV2" : "Mul", name, inputs);
    }
    graph.AddFloat("AssignVariableOp", "assign_m", {"m", "new"});
    graph.AddFloat("ReadVariableOp", "read_new_m", {"m", "^assign_m"});
    graph.AddFloat("AssignSubVariableOp", "assign_w", {"w", "read_new_m"});
    graph.AddFloat("ReadVariableOp", "read_w", {"w", "^assign_w"});
    graph.Add("MatMul", "next_forward", {"read_w", "read_w"});
    ReportedGroup group;
    group.node = "reduce";
    group.tensors = {{"w", "gradient", 0}};
    report.groups = {group};
    keep.targets = {"assign_w"};
  }

  bool Shard(bool overlaps_calls = false) {
    sharding.overlaps_calls = overlaps_calls;
    ShardUpdates(sharding, gathers, keep, &report, &graph.def);
    return report.groups[0].is_sharded;
  }
};

}  // namespace testing
}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_MOMENTUM_STEP_H_
