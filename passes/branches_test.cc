#include "passes/branches.h"

#include <algorithm>
#include <string>

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

// The weight is updated every other step, as with Keras' gradient_accumulation_steps.
DOCTEST_TEST_CASE("UpdatesInBranchesAreGatheredOutsideOfThem") {
  MomentumStep step;
  Graph* const graph = &step.graph;
  graph->Add("Placeholder", "is_update");
  for (const char* handle : {"w", "m"}) {
    graph->Add("Switch", std::string("branch_") + handle, {handle, "is_update"});
  }
  for (auto& node : *graph->def.mutable_node()) {
    const std::string& name = node.name();
    if (name == "read_new_m") node.set_input(0, "branch_m:1");
    if (name == "assign_w") node.set_input(0, "branch_w:1");
  }
  graph->Add("Identity", "branch_taken", {"branch_w:1", "^assign_w"});
  graph->Add("Merge", "branch_end", {"branch_taken", "branch_w:0"});
  for (auto& node : *graph->def.mutable_node()) {
    if (node.name() == "read_w") node.set_input(1, "^branch_end");
  }
  const bool is_sharded = step.Shard();
  DOCTEST_CHECK_EQ(step.report.groups[0].whole, "");
  DOCTEST_CHECK(is_sharded);
  const auto nodes = ByName(graph->def);
  DOCTEST_CHECK_EQ(nodes.at("read_new_m").op(), "LibraReadOwned");
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("assign_w_owned")), (Inputs{"branch_w:1", "read_new_m"}));
  const auto& end = nodes.at("assign_w_owned_end");
  DOCTEST_CHECK_EQ(end.op(), "Merge");
  DOCTEST_CHECK_EQ(InputsOf(end), (Inputs{"branch_w:0", "branch_w:1", "^assign_w_owned"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_gather")),
                   (Inputs{"w", "^assign_w_owned_end", "^reduce", "^assign_m"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("read_w")), (Inputs{"w", "^branch_end", "^reduce_gather"}));
}

// As Keras' ema_overwrite_frequency does.
DOCTEST_TEST_CASE("WhatABranchAssignsAfterTheUpdateWaitsForTheGather") {
  MomentumStep step;
  Graph* const graph = &step.graph;
  graph->Add("Placeholder", "is_overwritten");
  graph->Add("Placeholder", "average");
  graph->Add("Switch", "branch_w", {"w", "is_overwritten", "^assign_w"});
  graph->Add("Switch", "branch_average", {"average", "is_overwritten"});
  step.graph.AddFloat("AssignVariableOp", "overwrite",
                      {"branch_w:1", "branch_average:1", "^assign_w"});
  DOCTEST_CHECK(step.Shard());
  const auto nodes = ByName(graph->def);
  DOCTEST_CHECK_EQ(nodes.at("overwrite").op(), "AssignVariableOp");
  const Inputs overwrite = InputsOf(nodes.at("overwrite"));
  DOCTEST_CHECK_EQ(overwrite[1], "branch_average:1");
  DOCTEST_CHECK(std::find(overwrite.begin(), overwrite.end(), "^reduce_gather") != overwrite.end());
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_gather")),
                   (Inputs{"w", "^assign_w_owned", "^reduce", "^assign_m"}));
}

// As a step does that is skipped if gradients are not finite.
DOCTEST_TEST_CASE("AConditionalReturnsPartsOrTheOwnedPartsOfOthers") {
  MomentumStep step;
  Graph* const graph = &step.graph;
  graph->Add("Placeholder", "is_finite");
  graph->Add("Const", "zeros");
  graph->AddFloat("Switch", "branch", {"reduce", "is_finite"});
  graph->AddFloat("Switch", "other", {"zeros", "is_finite"});
  tensorflow::AddNodeAttr("N", 2, graph->AddFloat("Merge", "chosen", {"other:0", "branch:1"}));
  graph->Add("Print", "which", {"chosen:1"});  // an index
  for (auto& node : *graph->def.mutable_node()) {
    if (node.name() == "new") node.set_input(1, "chosen");
  }
  DOCTEST_CHECK(step.Shard());
  DOCTEST_CHECK_EQ(step.report.groups[0].whole, "");
  const auto nodes = ByName(graph->def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("chosen")), (Inputs{"other_owned_part", "branch:1"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("other_owned_part")), Inputs{"other:0"});
  DOCTEST_CHECK_EQ(nodes.at("other_owned_part").attr().at("T").type(), tensorflow::DT_FLOAT);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("new")), (Inputs{"decayed", "chosen"}));
}

// A gather must run on all ranks, in every step.
DOCTEST_TEST_CASE("UpdatesInUnknownBranchesStayWhole") {
  const auto reason_of = [](auto change) {
    MomentumStep step;
    step.graph.Add("Placeholder", "condition");
    change(&step);
    DOCTEST_CHECK(!step.Shard());
    return step.report.groups[0].whole;
  };
  const auto set_input = [](MomentumStep* step, const char* name, int slot, const char* input) {
    for (auto& node : *step->graph.def.mutable_node()) {
      if (node.name() == name) node.set_input(slot, input);
    }
  };
  // The whole step, with its all-reduce.
  DOCTEST_CHECK_EQ(reason_of([&](MomentumStep* step) {
                     step->graph.Add("Switch", "branch_w", {"w", "condition"});
                     step->graph.Add("Switch", "branch_m", {"m", "condition"});
                     step->graph.Add("Switch", "branch", {"gradient", "condition"});
                     set_input(step, "reduce", 0, "branch:1");
                     set_input(step, "assign_w", 0, "branch_w:1");
                     for (const char* user : {"read_m", "assign_m", "read_new_m"}) {
                       set_input(step, user, 0, "branch_m:1");
                     }
                   }),
                   "an all-reduce is conditional or in a loop");
  const std::string in_unknown =
      "an update is in a loop, a tf.switch_case or a branch without its variable";
  DOCTEST_CHECK_EQ(reason_of([&](MomentumStep* step) {
                     step->graph.Add("Switch", "branch_decay", {"decay", "condition"});
                     set_input(step, "decayed", 1, "branch_decay:1");
                   }),
                   in_unknown);
  DOCTEST_CHECK_EQ(reason_of([&](MomentumStep* step) {
                     step->graph.Add("_SwitchN", "cases", {"decay", "condition"});
                     set_input(step, "decayed", 1, "cases:2");
                   }),
                   in_unknown);
  DOCTEST_CHECK_EQ(reason_of([&](MomentumStep* step) {
                     auto* const enter = step->graph.Add("Enter", "loop_w", {"w"});
                     (*enter->mutable_attr())["frame_name"].set_s("loop");
                     step->graph.Add("Switch", "branch_w", {"loop_w", "condition"});
                     set_input(step, "assign_w", 0, "branch_w:1");
                   }),
                   "'assign_w' (AssignSubVariableOp) is in a loop or a tf.switch_case");
}

// As a dynamic loss scale does.
DOCTEST_TEST_CASE("PartsPassThroughSwitches") {
  MomentumStep step;
  Graph* const graph = &step.graph;
  tensorflow::NodeDef* const axes = graph->Add("Const", "axes");
  tensorflow::Tensor both(tensorflow::DT_INT32, {2});
  both.flat<int32_t>().setZero();
  tensorflow::AddNodeAttr("value", both, axes);
  graph->AddFloat("IsFinite", "is_finite", {"reduce"});
  tensorflow::AddNodeAttr("keep_dims", false, graph->Add("All", "all", {"is_finite", "axes"}));
  graph->AddFloat("Switch", "branch_gradient", {"reduce", "all"});
  graph->Add("Switch", "branch_m", {"m", "all"});
  graph->Add("Switch", "branch_w", {"w", "all"});
  for (auto& node : *graph->def.mutable_node()) {
    const std::string& name = node.name();
    if (name == "new") node.set_input(1, "branch_gradient:1");
    for (const char* user : {"read_m", "assign_m", "read_new_m"}) {
      if (name == user) node.set_input(0, "branch_m:1");
    }
    if (name == "assign_w") node.set_input(0, "branch_w:1");
    if (name == "read_w") node.clear_input();
    if (name == "read_w") node.add_input("w");
  }
  const bool is_sharded = step.Shard();
  DOCTEST_CHECK_EQ(step.report.groups[0].whole, "");
  DOCTEST_CHECK(is_sharded);
  const auto nodes = ByName(graph->def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("branch_gradient")), (Inputs{"reduce", "all"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("new")), (Inputs{"decayed", "branch_gradient:1"}));
  DOCTEST_CHECK_EQ(nodes.at("all").op(), "Identity");
  DOCTEST_CHECK_EQ(nodes.at("all").attr().at("T").type(), tensorflow::DT_BOOL);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("all_partial")), (Inputs{"is_finite", "reduce_axis"}));
  DOCTEST_CHECK_EQ(
      InputsOf(nodes.at("reduce_gather")),
      (Inputs{"w", "^assign_w_owned_end", "^reduce", "^reduce_sums", "^assign_m_end"}));
}

// As Keras clips gradients by their norm in the branch of a dynamic loss scale.
DOCTEST_TEST_CASE("SumsInBranchesAreExchangedOutsideOfThem") {
  MomentumStep step;
  Graph* const graph = &step.graph;
  graph->Add("Placeholder", "outer");
  graph->Add("Placeholder", "inner");
  graph->AddFloat("Switch", "inner_in_outer", {"inner", "outer"});
  graph->AddFloat("Switch", "in_outer", {"reduce", "outer"});
  graph->AddFloat("Switch", "in_inner", {"in_outer:1", "inner_in_outer:1"});
  graph->AddFloat("L2Loss", "norm", {"in_inner:0"});
  graph->AddFloat("Mul", "clipped", {"in_inner:0", "norm"});
  DOCTEST_CHECK(step.Shard());
  DOCTEST_CHECK_EQ(step.report.groups[0].whole, "");
  const auto nodes = ByName(graph->def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_sums")), (Inputs{"norm_partial_merged_1", "^reduce"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("norm_partial_merged_1")),
                   (Inputs{"norm_partial_merged", "norm_partial_zero_switch:0"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("norm_partial_merged")),
                   (Inputs{"norm_partial", "norm_partial_zero_switch_switch:1"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("norm_partial_zero_switch_switch")),
                   (Inputs{"norm_partial_zero_switch:1", "inner_in_outer:1"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("norm_partial_zero_switch")),
                   (Inputs{"norm_partial_zero", "outer:0"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("norm")), Inputs{"reduce_sums_switch_switch:0"});
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_sums_switch_switch")),
                   (Inputs{"reduce_sums_switch:1", "inner_in_outer:1"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_sums_switch")), (Inputs{"reduce_sums:0", "outer:0"}));
}

}  // namespace
}  // namespace tf_libra
