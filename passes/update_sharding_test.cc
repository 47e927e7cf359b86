#include "passes/update_sharding.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "passes/momentum_step.h"
#include "passes/testing.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_libra {
namespace {

using testing::ByName;
using testing::Graph;
using testing::Inputs;
using testing::InputsOf;
using testing::MomentumStep;

DOCTEST_TEST_CASE("OwnedPartsAreUpdatedAndWeightsGathered") {
  MomentumStep step;
  DOCTEST_CHECK(step.Shard());
  const auto nodes = ByName(step.graph.def);
  DOCTEST_CHECK(nodes.at("reduce").attr().at("scatter").b());
  DOCTEST_CHECK_EQ(nodes.at("read_m").op(), "LibraReadOwned");
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("decayed")), (Inputs{"read_m", "decay_owned_part"}));
  DOCTEST_CHECK_EQ(nodes.at("decay_owned_part").op(), "LibraOwnedPart");
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("new")), (Inputs{"decayed", "reduce"}));
  DOCTEST_CHECK_EQ(nodes.at("assign_m").op(), "LibraAssignOwned");
  DOCTEST_CHECK(nodes.at("assign_m").attr().at("is_slot").b());
  DOCTEST_CHECK_EQ(nodes.at("assign_w_owned").op(), "LibraAssignOwned");
  DOCTEST_CHECK_EQ(nodes.at("assign_w_owned").attr().at("mode").s(), "subtract");
  DOCTEST_CHECK(!nodes.at("assign_w_owned").attr().at("is_slot").b());
  // What waited for the weight waits for the gather.
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_gather")),
                   (Inputs{"w", "^assign_w_owned", "^reduce", "^assign_m"}));
  DOCTEST_CHECK(nodes.at("reduce_gather").attr().at("of_step").b());
  DOCTEST_CHECK(nodes.at("reduce_gather").attr().at("ends_step").b());
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("assign_w")), (Inputs{"^assign_w_owned", "^reduce_gather"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("read_w")), (Inputs{"w", "^assign_w", "^reduce_gather"}));
  DOCTEST_CHECK_EQ(nodes.at("read_w").op(), "ReadVariableOp");
}

DOCTEST_TEST_CASE("TheLastGathersMayGoOnAfterTheGraph") {
  MomentumStep step;
  step.graph.AddFloat("ReadVariableOp", "forward", {"w"});
  DOCTEST_CHECK(step.Shard(true));
  const auto nodes = ByName(step.graph.def);
  DOCTEST_CHECK(nodes.at("reduce_gather").attr().at("in_background").b());
  // What reads the weight again waits for it, and so does the next call's forward pass.
  const Inputs last_call = {"w"};
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_gather_last_call")), last_call);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("forward")), (Inputs{"w", "^reduce_gather_last_call"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_gather_end")), (Inputs{"w", "^reduce_gather"}));
  const Inputs read = InputsOf(nodes.at("read_w"));
  DOCTEST_CHECK(std::find(read.begin(), read.end(), "^reduce_gather_end") != read.end());
  DOCTEST_CHECK_EQ(nodes.at("reduce_gather_end").op(), "LibraAwaitGather");
  const Inputs gather = InputsOf(nodes.at("reduce_gather"));
  DOCTEST_CHECK_EQ(gather, (Inputs{"w", "^assign_w_owned", "^reduce", "^assign_m"}));
}

DOCTEST_TEST_CASE("PlannedGathersHaveThreadsOfTheirOwn") {
  MomentumStep step;
  for (auto& node : *step.graph.def.mutable_node()) {
    if (node.name() == "reduce") tensorflow::AddNodeAttr("first_lane", 2, &node);
  }
  step.gathers = {{{"w"}, 3}};
  DOCTEST_CHECK(step.Shard(true));
  const auto nodes = ByName(step.graph.def);
  const auto& attributes = nodes.at("reduce_gather").attr();
  DOCTEST_CHECK_EQ(attributes.at("num_threads").i(), 3);
  DOCTEST_CHECK_EQ(attributes.at("first_lane").i(), 0);
  DOCTEST_CHECK_EQ(attributes.at("plan").s(), "p");
}

// Each change makes one op read more than the owned part.
DOCTEST_TEST_CASE("AnotherReaderKeepsTheUpdateWhole") {
  const auto stays = [](auto change) {
    MomentumStep step;
    change(&step);
    const std::string before = step.graph.def.SerializeAsString();
    DOCTEST_CHECK(!step.Shard());
    DOCTEST_CHECK_EQ(step.graph.def.SerializeAsString(), before);
    DOCTEST_CHECK(!step.report.groups[0].whole.empty());
  };
  stays([](MomentumStep* step) { step->graph.Add("Max", "norm", {"reduce", "decay"}); });
  stays([](MomentumStep* step) { step->graph.Add("Max", "norm", {"decayed", "decay"}); });
  stays([](MomentumStep* step) { step->graph.Add("Max", "norm", {"read_new_m", "decay"}); });
  stays([](MomentumStep* step) { step->graph.Add("ResourceGather", "rows", {"m", "decay"}); });
  stays([](MomentumStep* step) {
    step->graph.AddFloat("AddN", "sum", {"decayed", "reduce", "read_m"});
    for (auto& node : *step->graph.def.mutable_node()) {
      if (node.name() == "assign_m") node.set_input(1, "sum");
    }
  });
  stays([](MomentumStep* step) { step->keep.fetched = {"new"}; });
  stays([](MomentumStep* step) { step->keep.fetched = {"read_new_m"}; });
  stays([](MomentumStep* step) { step->report.groups[0].tensors[0].name = "another"; });
  stays([](MomentumStep* step) {
    for (auto& node : *step->graph.def.mutable_node()) {
      if (node.name() == "new") node.set_device("/device:GPU:0");
    }
  });
}

// The gradient is clipped by its norm.
DOCTEST_TEST_CASE("SumsOfPartsAreAddedOverRanks") {
  MomentumStep step;
  Graph* const graph = &step.graph;
  tensorflow::NodeDef* const axes = graph->Add("Const", "axes");
  tensorflow::Tensor both(tensorflow::DT_INT32, {2});
  both.flat<int32_t>().setZero();
  tensorflow::AddNodeAttr("value", both, axes);
  graph->AddFloat("Square", "square", {"reduce"});
  tensorflow::AddNodeAttr("keep_dims", true, graph->AddFloat("Sum", "sum", {"square", "axes"}));
  graph->AddFloat("L2Loss", "half", {"reduce"});
  graph->AddFloat("Add", "norm", {"sum", "half"});
  graph->AddFloat("Mul", "clipped", {"reduce", "norm"});
  for (auto& node : *graph->def.mutable_node()) {
    if (node.name() == "new") node.set_input(1, "clipped");
  }
  DOCTEST_CHECK(step.Shard());
  const auto nodes = ByName(graph->def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("sum_partial")), (Inputs{"square", "reduce_axis"}));
  DOCTEST_CHECK(!nodes.at("sum_partial").attr().at("keep_dims").b());
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("half_partial")), Inputs{"reduce"});
  const auto& sums = nodes.at("reduce_sums");
  DOCTEST_CHECK_EQ(sums.op(), "LibraSumPartials");
  DOCTEST_CHECK_EQ(InputsOf(sums), (Inputs{"half_partial", "sum_partial", "^reduce"}));
  DOCTEST_CHECK_EQ(sums.attr().at("dims").list().i(0), 0);
  DOCTEST_CHECK_EQ(sums.attr().at("dims").list().i(1), 2);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("sum")), Inputs{"reduce_sums:1"});
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("norm")), (Inputs{"sum", "half"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("clipped")), (Inputs{"reduce", "norm_owned_part"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_gather")),
                   (Inputs{"w", "^assign_w_owned", "^reduce", "^reduce_sums", "^assign_m"}));
}

// As Keras' constraints of weights do.
DOCTEST_TEST_CASE("WhatIsAssignedAfterTheUpdateWaitsForTheGather") {
  MomentumStep step;
  step.graph.Add("Max", "constrained", {"read_w", "decay"});
  step.graph.AddFloat("AssignVariableOp", "constrain", {"w", "constrained"});
  DOCTEST_CHECK(step.Shard());
  const auto nodes = ByName(step.graph.def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("constrain")), (Inputs{"w", "constrained", "^reduce_gather"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_gather")),
                   (Inputs{"w", "^assign_w_owned", "^reduce", "^assign_m"}));
}

// Skips the step if a gradient is no number.
DOCTEST_TEST_CASE("RanksAskEachOtherForAnyTrueElement") {
  MomentumStep step;
  Graph* const graph = &step.graph;
  graph->AddFloat("IsNan", "is_nan", {"reduce"});
  tensorflow::AddNodeAttr("keep_dims", false, graph->Add("Any", "any", {"is_nan", "axes"}));
  graph->Add("Const", "axes");
  graph->AddFloat("SelectV2", "chosen", {"any", "decay", "reduce"});
  DOCTEST_CHECK(step.Shard());
  const auto nodes = ByName(graph->def);
  DOCTEST_CHECK_EQ(nodes.at("any_partial").op(), "Any");
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("any_partial_not")), Inputs{"any_partial"});
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_sums")), (Inputs{"any_partial_not", "^reduce"}));
  DOCTEST_CHECK_EQ(nodes.at("any").op(), "LogicalNot");
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("any")), Inputs{"reduce_sums:0"});
}

// TensorFlow makes a sum of one element a Reshape.
DOCTEST_TEST_CASE("SumsOfOneElementAreAddedIfOtherOpsReadThem") {
  MomentumStep step;
  step.sharding.num_elements = {{"w", 1}};
  Graph* const graph = &step.graph;
  tensorflow::AddNodeAttr("value", tensorflow::Tensor(tensorflow::DT_INT32, {0}),
                          graph->Add("Const", "scalar"));
  graph->AddFloat("Square", "square", {"reduce"});
  tensorflow::AddNodeAttr("Tshape", tensorflow::DT_INT32,
                          graph->AddFloat("Reshape", "sum", {"square", "scalar"}));
  MomentumStep other = step;  // in which the sum is a factor of its own tensor alone
  graph->AddFloat("Pack", "norms", {"sum", "decay"});
  DOCTEST_CHECK(step.Shard());
  DOCTEST_CHECK_EQ(step.report.groups[0].whole, "");
  auto nodes = ByName(graph->def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("sum")), Inputs{"reduce_sums:0"});
  DOCTEST_CHECK_EQ(nodes.at("sum_partial").op(), "Sum");
  DOCTEST_CHECK_EQ(nodes.at("sum_partial").attr().count("Tshape"), 0);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("sum_partial")), (Inputs{"square", "reduce_axis"}));
  DOCTEST_CHECK_EQ(nodes.at("reduce_sums").attr().at("dims").list().i(0), 0);
  other.graph.AddFloat("Mul", "scaled", {"reduce", "sum"});
  DOCTEST_CHECK(other.Shard());
  nodes = ByName(other.graph.def);
  DOCTEST_CHECK_EQ(nodes.at("sum").op(), "Identity");
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("sum")), (Inputs{"square", "^scalar"}));
  DOCTEST_CHECK_EQ(nodes.count("reduce_sums"), 0);
}

// What runs only in a branch that is taken must not hold up what always runs.
DOCTEST_TEST_CASE("AConditionalAllReduceKeepsTheUpdateWhole") {
  MomentumStep step;
  step.graph.Add("Switch", "switch", {"decay", "decay"});
  step.graph.Add("Identity", "in_branch", {"switch:1"});
  step.graph.Reduce("conditional", "in_branch");
  DOCTEST_CHECK(!step.Shard());
  DOCTEST_CHECK_EQ(step.report.groups[0].whole, "an all-reduce is conditional or in a loop");
}

DOCTEST_TEST_CASE("SumsOfWhatASumScalesAreAddedByAnotherExchange") {
  MomentumStep step;
  step.graph.AddFloat("L2Loss", "half", {"reduce"});
  step.graph.AddFloat("Mul", "scaled", {"reduce", "half"});
  step.graph.AddFloat("L2Loss", "of_scaled", {"scaled"});
  DOCTEST_CHECK(step.Shard());
  const auto nodes = ByName(step.graph.def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_sums")), (Inputs{"half_partial", "^reduce"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_sums_1")),
                   (Inputs{"of_scaled_partial", "^reduce", "^reduce_sums"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_gather")),
                   (Inputs{"w", "^assign_w_owned", "^reduce", "^reduce_sums_1", "^assign_m"}));
}

DOCTEST_TEST_CASE("GradientsPassThroughIdentityN") {
  MomentumStep step;
  step.graph.Add("IdentityN", "all", {"decayed", "reduce", "^decay"});
  for (auto& node : *step.graph.def.mutable_node()) {
    if (node.name() == "new") node.set_input(1, "all:1");
  }
  DOCTEST_CHECK(step.Shard());
  const auto nodes = ByName(step.graph.def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("new")), (Inputs{"decayed", "reduce", "^decay"}));
  DOCTEST_CHECK_EQ(nodes.at("all").op(), "NoOp");
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("all")), (Inputs{"^decayed", "^reduce", "^decay"}));
}

// Gathers run after every all-reduce. If one depends on a gathered weight, there is no such order.
DOCTEST_TEST_CASE("AnAllReduceBehindTheGatherKeepsTheUpdateWhole") {
  MomentumStep step;
  step.graph.Reduce("second", "next_forward");
  DOCTEST_CHECK(!step.Shard());
}

// The second step of a graph exchanges its sums after the gathers of the first one.
DOCTEST_TEST_CASE("SumsOfACopyFollowItsAllReduces") {
  Graph graph;
  GraphReport report;
  tensorflow::AddNodeAttr("index", 0, graph.Add("_Arg", "w"));
  Inputs read = {"w"};
  for (const std::string k : {"1", "2"}) {
    graph.AddFloat("ReadVariableOp", "read_" + k, read);
    graph.AddFloat("MatMul", "gradient_" + k, {"read_" + k, "read_" + k});
    tensorflow::AddNodeAttr("plan", "p", graph.Reduce("reduce_" + k, "gradient_" + k, "w"));
    graph.AddFloat("L2Loss", "norm_" + k, {"reduce_" + k});
    graph.AddFloat("Mul", "clipped_" + k, {"reduce_" + k, "norm_" + k});
    graph.AddFloat("AssignSubVariableOp", "assign_" + k, {"w", "clipped_" + k, "^read_" + k});
    read = {"w", "^assign_" + k};
    ReportedGroup group;
    group.node = "reduce_" + k;
    group.copy = k == "1" ? 0 : 1;
    group.tensors = {{"w", "gradient_" + k, 0}};
    report.groups.push_back(group);
  }
  ShardUpdates({{{"w", 100}}, {}}, {}, {}, &report, &graph.def);
  for (const ReportedGroup& group : report.groups) DOCTEST_CHECK_EQ(group.whole, "");
  const auto nodes = ByName(graph.def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_1_sums")), (Inputs{"norm_1_partial", "^reduce_1"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_1_sums_1")), (Inputs{"norm_2_partial", "^reduce_2"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_1_gather")),
                   (Inputs{"w", "^assign_1_owned", "^reduce_1", "^reduce_1_sums"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_2")), (Inputs{"gradient_2", "^reduce_1_gather"}));
}

// Two steps of momentum with weight decay in one graph.
DOCTEST_TEST_CASE("GathersOfACopyOverlapTheNextForwardPass") {
  Graph graph;
  GraphReport report;
  for (const int index : {0, 1}) {
    tensorflow::AddNodeAttr("index", index, graph.Add("_Arg", index == 0 ? "w" : "m"));
  }
  std::string before_w, before_m;
  for (const std::string k : {"1", "2"}) {
    const auto after = [](Inputs inputs, const std::string& control) {
      if (!control.empty()) inputs.push_back("^" + control);
      return inputs;
    };
    graph.AddFloat("ReadVariableOp", "read_w_" + k, after({"w"}, before_w));
    graph.AddFloat("MatMul", "gradient_" + k, {"read_w_" + k, "read_w_" + k});
    tensorflow::AddNodeAttr("plan", "p", graph.Reduce("reduce_" + k, "gradient_" + k, "w"));
    graph.AddFloat("Mul", "decayed_" + k, {"read_w_" + k, "read_w_" + k});
    graph.AddFloat("AssignVariableOp", "decay_" + k, {"w", "decayed_" + k});
    graph.AddFloat("ReadVariableOp", "read_m_" + k, after({"m"}, before_m));
    graph.AddFloat("AddV2", "new_" + k, {"read_m_" + k, "reduce_" + k});
    graph.AddFloat("AssignVariableOp", "assign_m_" + k, {"m", "new_" + k});
    graph.AddFloat("AssignSubVariableOp", "assign_w_" + k, {"w", "new_" + k, "^decay_" + k});
    before_w = "assign_w_" + k;
    before_m = "assign_m_" + k;
    ReportedGroup group;
    group.node = "reduce_" + k;
    group.copy = k == "1" ? 0 : 1;
    group.tensors = {{"w", "gradient_" + k, 0}};
    report.groups.push_back(group);
  }
  ShardUpdates({{{"w", 100}}, {1}}, {}, {}, &report, &graph.def);
  for (const ReportedGroup& group : report.groups) DOCTEST_CHECK_EQ(group.whole, "");
  const auto nodes = ByName(graph.def);
  const auto waits = [&](const std::string& node, const std::string& input) {
    const Inputs inputs = InputsOf(nodes.at(node));
    return std::find(inputs.begin(), inputs.end(), "^" + input) != inputs.end();
  };
  for (const std::string k : {"1", "2"}) {
    DOCTEST_CHECK_EQ(nodes.at("read_m_" + k).op(), "LibraReadOwned");
    DOCTEST_CHECK_EQ(nodes.at("decay_" + k + "_owned").op(), "LibraAssignOwned");
    DOCTEST_CHECK(waits("reduce_" + k + "_gather", "decay_" + k + "_owned"));
    DOCTEST_CHECK(waits("reduce_" + k + "_gather", "assign_w_" + k + "_owned"));
    DOCTEST_CHECK(waits("reduce_" + k + "_gather", "reduce_" + k));
    DOCTEST_CHECK(waits("reduce_" + k + "_gather", "assign_m_" + k));
  }
  DOCTEST_CHECK(waits("reduce_2", "reduce_1_gather"));
  DOCTEST_CHECK(waits("read_w_2", "reduce_1_gather"));
  DOCTEST_CHECK(waits("assign_w_2_owned", "reduce_1_gather"));
  DOCTEST_CHECK(waits("assign_m_2", "reduce_1_gather"));
}

}  // namespace
}  // namespace tf_libra
