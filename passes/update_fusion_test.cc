#include "passes/update_fusion.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/update_program.h"
#include "passes/testing.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_libra {
namespace {

using testing::ByName;
using testing::Graph;
using testing::Inputs;
using testing::InputsOf;

// Momentum of owned parts: m = m * decay + g; w -= m; then the gather.
struct MomentumOfParts {
  Graph graph;
  ShardedNodes sharded;
  NodesToKeep keep;

  tensorflow::NodeDef* Part(const std::string& op, const std::string& name, const Inputs& inputs) {
    sharded.parts.push_back(graph.def.node_size());
    tensorflow::NodeDef* const node = graph.Add(op, name, inputs);
    const bool has_handle = op == "LibraReadOwned" || op == "LibraAssignOwned";
    tensorflow::AddNodeAttr(has_handle ? "dtype" : "T", tensorflow::DT_FLOAT, node);
    return node;
  }

  void Assign(const std::string& name, const Inputs& inputs, const char* mode, int copy = 0) {
    sharded.copies[graph.def.node_size()] = copy;
    tensorflow::NodeDef* const node = Part("LibraAssignOwned", name, inputs);
    tensorflow::AddNodeAttr("mode", mode, node);
    tensorflow::AddNodeAttr("is_slot", inputs[0] == "m", node);
  }

  MomentumOfParts() {
    for (const char* name : {"w", "m"}) graph.Add("_Arg", name);
    for (const char* name : {"gradients", "decay", "earlier"}) graph.Add("Const", name);
    Part("LibraReadOwned", "read_m", {"m", "^earlier"});
    Part("Mul", "decayed", {"read_m", "decay"});
    Part("Identity", "same", {"gradients:1"});
    Part("AddV2", "new", {"decayed", "same"});
    Assign("assign_m", {"m", "new"}, "assign");
    Part("LibraReadOwned", "read_new_m", {"m", "^assign_m"});
    Assign("assign_w", {"w", "read_new_m"}, "subtract");
    graph.Add("LibraGatherOwned", "gather", {"w", "^assign_w"});
  }

  bool Fuse() { return FuseUpdates(sharded, keep, &graph.def) > 0; }
};

DOCTEST_TEST_CASE("AnUpdateBecomesOneOp") {
  MomentumOfParts step;
  DOCTEST_REQUIRE(step.Fuse());
  const auto nodes = ByName(step.graph.def);
  const auto& update = nodes.at("assign_w_update");
  DOCTEST_CHECK_EQ(update.op(), "LibraUpdateOwned");
  // The topological order of the two operands of `new` is the graph's.
  DOCTEST_CHECK_EQ(InputsOf(update).size(), 5);
  DOCTEST_CHECK_EQ(update.input(0), "m");
  DOCTEST_CHECK_EQ(update.input(1), "w");
  DOCTEST_CHECK_EQ(update.input(4), "^earlier");
  DOCTEST_CHECK(update.attr().at("is_slot").list().b(0));
  DOCTEST_CHECK(!update.attr().at("is_slot").list().b(1));
  std::vector<int> program(update.attr().at("program").list().i().begin(),
                           update.attr().at("program").list().i().end());
  const int decay = update.input(2) == "decay" ? 0 : 1;
  const std::vector<UpdateInstruction> expected = {
      {UpdateOp::kRead, 0, 0},   {UpdateOp::kMultiply, 2, decay}, {UpdateOp::kAdd, 3, 1 - decay},
      {UpdateOp::kAssign, 0, 4}, {UpdateOp::kRead, 0, 0},         {UpdateOp::kAssignSubtract, 1, 6},
  };
  DOCTEST_REQUIRE_EQ(program.size(), 3 * expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    DOCTEST_CHECK_EQ(program[3 * i], static_cast<int>(expected[i].op));
    DOCTEST_CHECK_EQ(program[3 * i + 1], expected[i].first);
    DOCTEST_CHECK_EQ(program[3 * i + 2], expected[i].second);
  }
  for (const char* member : {"read_m", "new", "assign_m", "assign_w"}) {
    DOCTEST_CHECK_EQ(nodes.at(member).op(), "NoOp");
    DOCTEST_CHECK_EQ(InputsOf(nodes.at(member)), Inputs{"^assign_w_update"});
  }
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("gather")), (Inputs{"w", "^assign_w"}));
}

DOCTEST_TEST_CASE("WhatNoProgramCanDoStays") {
  // `stays` and what leads to it; the rest is one op, which reads it.
  const auto fuse = [](const char* stays, auto change) {
    MomentumOfParts step;
    change(&step);
    const auto before = ByName(step.graph.def);
    DOCTEST_CHECK(step.Fuse());
    const auto nodes = ByName(step.graph.def);
    for (const char* name : {"read_m", "decayed", stays}) {
      DOCTEST_CHECK_EQ(nodes.at(name).op(), before.at(name).op());
    }
    const Inputs inputs = InputsOf(nodes.at("assign_w_update"));
    DOCTEST_CHECK(std::find(inputs.begin(), inputs.end(), stays) != inputs.end());
  };
  const auto change_node = [](const char* name, auto change) {
    return [=](MomentumOfParts* step) {
      for (auto& node : *step->graph.def.mutable_node()) {
        if (node.name() == name) change(&node);
      }
    };
  };
  fuse("decayed", change_node("decayed", [](auto* node) { node->set_op("Pow"); }));
  fuse("decayed", change_node("decayed", [](auto* node) {
         (*node->mutable_attr())["T"].set_type(tensorflow::DT_DOUBLE);
       }));
  fuse("decayed", change_node("decayed", [](auto* node) { node->set_device("/device:GPU:0"); }));
  fuse("new", change_node("new", [](auto* node) {
         node->set_op("AddN");
         node->add_input("decay");
       }));
  fuse("new", [](MomentumOfParts* step) { step->keep.fetched = {"new"}; });
  // Another op reads it.
  MomentumOfParts step;
  step.graph.Add("Sum", "norm", {"new", "decay"});
  DOCTEST_CHECK(step.Fuse());
  DOCTEST_CHECK_EQ(ByName(step.graph.def).at("assign_m").op(), "LibraAssignOwned");
}

// One op would wait for what waits for a part of it.
DOCTEST_TEST_CASE("WhatWaitsInBetweenDividesAnUpdate") {
  MomentumOfParts step;
  step.graph.Add("NoOp", "between", {"^assign_m"});
  for (auto& node : *step.graph.def.mutable_node()) {
    if (node.name() == "read_new_m") node.add_input("^between");
  }
  DOCTEST_CHECK_EQ(FuseUpdates(step.sharded, step.keep, &step.graph.def), 2);
  const auto nodes = ByName(step.graph.def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("between")), Inputs{"^assign_m"});
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("assign_m")), Inputs{"^assign_m_update"});
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("assign_w_update")),
                   (Inputs{"m", "w", "^assign_m", "^between"}));
}

// Each step reads what the one before has assigned, and waits for its gather.
DOCTEST_TEST_CASE("StepsOfOneGraphHaveUpdatesOfTheirOwn") {
  MomentumOfParts step;
  step.graph.Add("Const", "next_gradients", {"^gather"});
  step.Part("LibraReadOwned", "next_read_m", {"m", "^assign_m", "^gather"});
  step.Part("AddV2", "next_new", {"next_read_m", "next_gradients"});
  step.Assign("next_assign_m", {"m", "next_new"}, "assign", 1);
  DOCTEST_CHECK_EQ(FuseUpdates(step.sharded, step.keep, &step.graph.def), 2);
  const auto nodes = ByName(step.graph.def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("next_assign_m_update")),
                   (Inputs{"m", "next_gradients", "^assign_m", "^gather"}));
}

// In a branch that is not taken, an op with parts outside of it would not run either.
DOCTEST_TEST_CASE("OneOpHasUpdatesOfOneBranchAlone") {
  MomentumOfParts step;
  step.graph.Add("Placeholder", "condition");
  step.graph.Add("Switch", "branch_w", {"w", "condition"});
  step.graph.Add("Switch", "branch_m", {"m", "condition"});
  for (auto& node : *step.graph.def.mutable_node()) {
    if (node.name() == "read_new_m") node.set_input(0, "branch_m:1");
    if (node.name() == "assign_w") node.set_input(0, "branch_w:1");
  }
  DOCTEST_CHECK_EQ(FuseUpdates(step.sharded, step.keep, &step.graph.def), 2);
  auto nodes = ByName(step.graph.def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("assign_w_update")),
                   (Inputs{"branch_m:1", "branch_w:1", "^assign_m"}));
  DOCTEST_CHECK_EQ(nodes.at("assign_m_update").input(0), "m");
  // An op outside of the branch, and one in it, that data connects.
  MomentumOfParts other;
  other.graph.Add("Placeholder", "condition");
  other.graph.Add("Switch", "branch_w", {"w", "condition"});
  for (auto& node : *other.graph.def.mutable_node()) {
    if (node.name() == "assign_w") node.set_input(0, "branch_w:1");
  }
  DOCTEST_CHECK_EQ(FuseUpdates(other.sharded, other.keep, &other.graph.def), 1);
  nodes = ByName(other.graph.def);
  DOCTEST_CHECK_EQ(nodes.at("assign_w").op(), "LibraAssignOwned");
  DOCTEST_CHECK_EQ(nodes.at("read_new_m").op(), "LibraReadOwned");
}

DOCTEST_TEST_CASE("EachUpdateIsFusedOnItsOwn") {
  MomentumOfParts step;
  step.graph.Add("_Arg", "v");
  step.Part("Rsqrt", "root", {"decay"});
  step.Assign("assign_v", {"v", "root"}, "add");
  DOCTEST_CHECK_EQ(FuseUpdates(step.sharded, step.keep, &step.graph.def), 2);
  DOCTEST_CHECK_EQ(ByName(step.graph.def).at("root").op(), "Rsqrt");
}

}  // namespace
}  // namespace tf_libra
