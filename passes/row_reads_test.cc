#include "passes/row_reads.h"

#include <string>

#include "passes/testing.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_libra {
namespace {

using tensorflow::NodeDef;
using testing::ByName;
using testing::Graph;
using testing::Inputs;
using testing::InputsOf;

// A step that reads rows of a table, and updates them.
struct Lookup {
  Graph graph;
  NodesToKeep keep;

  explicit Lookup(int axis = 0) {
    for (const char* name : {"table", "tokens"}) graph.Add("_Arg", name);
    tensorflow::Tensor number(tensorflow::DT_INT32, {});
    number.scalar<int32_t>()() = axis;
    tensorflow::AddNodeAttr("value", number, graph.Add("Const", "axis"));
    graph.Add("NoOp", "before");
    graph.AddFloat("ReadVariableOp", "read", {"table", "^before"});
    NodeDef* const gather = graph.Add("GatherV2", "rows", {"read", "ids", "axis", "^tokens"});
    tensorflow::AddNodeAttr("Tparams", tensorflow::DT_FLOAT, gather);
    tensorflow::AddNodeAttr("Tindices", tensorflow::DT_INT64, gather);
    tensorflow::AddNodeAttr("Taxis", tensorflow::DT_INT32, gather);
    graph.AddFloat("Square", "gradient", {"rows"});
    graph.Add("ResourceScatterSub", "update", {"table", "ids", "gradient", "^read"});
    graph.Add("Identity", "ids", {"tokens"});
  }

  NodeDef* Node(const std::string& name) {
    for (auto& node : *graph.def.mutable_node()) {
      if (node.name() == name) return &node;
    }
    return nullptr;
  }

  int Rewrite() { return ReadRowsInPlace(keep, &graph.def); }
};

DOCTEST_TEST_CASE("RowsAreReadFromTheVariable") {
  Lookup step;
  DOCTEST_CHECK_EQ(step.Rewrite(), 1);
  const auto nodes = ByName(step.graph.def);
  const NodeDef& rows = nodes.at("rows");
  DOCTEST_CHECK_EQ(rows.op(), "ResourceGather");
  DOCTEST_CHECK_EQ(InputsOf(rows), (Inputs{"table", "ids", "^axis", "^before", "^tokens"}));
  DOCTEST_CHECK_EQ(rows.attr().at("dtype").type(), tensorflow::DT_FLOAT);
  DOCTEST_CHECK_EQ(rows.attr().at("Tindices").type(), tensorflow::DT_INT64);
  // What waits for the read waits for the rows.
  DOCTEST_CHECK_EQ(nodes.at("read").op(), "NoOp");
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("read")), Inputs{"^rows"});
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("update")), InputsOf(*Lookup().Node("update")));
  DOCTEST_CHECK_EQ(step.Rewrite(), 0);
}

DOCTEST_TEST_CASE("TheReadOfRowsMayBeATarget") {
  Lookup step;
  step.keep.targets = {"read"};  // it is there afterwards, and runs
  step.Node("rows")->add_input("^read");
  DOCTEST_CHECK_EQ(step.Rewrite(), 1);
}

DOCTEST_TEST_CASE("WhatIsNoReadOfRowsStays") {
  const auto stays = [](Lookup step, auto change) {
    change(&step);
    const std::string before = step.graph.def.SerializeAsString();
    DOCTEST_CHECK_EQ(step.Rewrite(), 0);
    DOCTEST_CHECK_EQ(step.graph.def.SerializeAsString(), before);
  };
  stays(Lookup(/*axis=*/1), [](Lookup*) {});
  stays(Lookup(), [](Lookup* step) { step->Node("axis")->set_op("Placeholder"); });
  stays(Lookup(), [](Lookup* step) { step->Node("read")->set_op("Identity"); });
  stays(Lookup(), [](Lookup* step) { step->keep.fetched = {"read"}; });
  stays(Lookup(), [](Lookup* step) { step->keep.fed = {"read"}; });
  stays(Lookup(), [](Lookup* step) { step->keep.fed = {"rows"}; });
  stays(Lookup(), [](Lookup* step) { step->Node("rows")->set_device("/device:CPU:1"); });
  stays(Lookup(), [](Lookup* step) {
    for (const char* name : {"read", "rows"}) step->Node(name)->set_device(testing::kGpu);
  });
  stays(Lookup(),
        [](Lookup* step) { tensorflow::AddNodeAttr("batch_dims", 1, step->Node("rows")); });
  // The value is needed as a whole.
  stays(Lookup(), [](Lookup* step) { step->graph.AddFloat("Sum", "norm", {"read", "axis"}); });
  // All of the table is updated, as by Adam of Keras.
  stays(Lookup(), [](Lookup* step) { step->Node("update")->set_op("AssignSubVariableOp"); });
  // Ids of what the update has written: the rows are older.
  stays(Lookup(), [](Lookup* step) {
    step->graph.Add("NoOp", "other_update", {"^read"});
    step->Node("ids")->add_input("^other_update");
  });
}

}  // namespace
}  // namespace tf_libra
