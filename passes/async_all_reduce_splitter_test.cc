// What follows the start of an all-reduce, and what its end.

#include "passes/async_all_reduce_splitter.h"

#include <string>
#include <vector>

#include "passes/indexed_graph.h"
#include "passes/testing.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"

namespace tf_libra {
namespace {

using testing::ByName;
using testing::Inputs;
using testing::InputsOf;

// Two groups, of two tensors and of one, one after the other.
testing::Graph TwoGroups() {
  testing::Graph builder;
  for (const char* name : {"x", "y", "z"}) builder.Add("Const", name);
  tensorflow::NodeDef* one = builder.Reduce("one", "x");
  one->add_input("y");
  (*one->mutable_attr())["N"].set_i(2);
  one->set_device("/device:CPU:0");
  for (int i = 0; i < 2; ++i) {
    auto* const shapes = (*one->mutable_attr())["_output_shapes"].mutable_list();
    shapes->add_shape()->add_dim()->set_size(i);
  }
  builder.Reduce("other", "z", "", {"^one"});
  return builder;
}

DOCTEST_TEST_CASE("TheNextStartsBehindTheStart") {
  testing::Graph builder = TwoGroups();
  SplitIntoStartDone({"one", "other"}, &builder.def);
  const auto nodes = ByName(builder.def);
  DOCTEST_CHECK_EQ(nodes.at("one").op(), "LibraAllReduceStart");
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("one")), (Inputs{"x", "y"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("other")), (Inputs{"z", "^one"}));
  const auto& wait = nodes.at("one_wait");
  DOCTEST_CHECK_EQ(wait.op(), "LibraAllReduceWait");
  DOCTEST_CHECK_EQ(InputsOf(wait), (Inputs{"one", "one:1", "one:2"}));
  DOCTEST_CHECK_EQ(wait.attr().at("N").i(), 2);
  DOCTEST_CHECK_EQ(wait.device(), "/device:CPU:0");
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("other_wait")), (Inputs{"other", "other:1"}));
}

// The start has one output more than there are shapes.
DOCTEST_TEST_CASE("ShapesAreOfWhatIsReduced") {
  testing::Graph builder = TwoGroups();
  SplitIntoStartDone({"one", "other"}, &builder.def);
  const auto nodes = ByName(builder.def);
  DOCTEST_CHECK_EQ(nodes.at("one").attr().count("_output_shapes"), 0);
  DOCTEST_CHECK_EQ(nodes.at("one_wait").attr().at("_output_shapes").list().shape(1).dim(0).size(),
                   1);
  DOCTEST_CHECK_EQ(nodes.at("other_wait").attr().count("_output_shapes"), 0);
}

DOCTEST_TEST_CASE("WhateverReadsItWaits") {
  testing::Graph builder = TwoGroups();
  builder.Add("AddN", "reader", {"one:1", "x", "other", "^one"});
  builder.Reduce("of_result", "one:1", "", {"^other"});
  builder.Reduce("stays", "z", "", {"^other"});
  SplitIntoStartDone({"one", "other", "of_result"}, &builder.def);
  const auto nodes = ByName(builder.def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("reader")),
                   (Inputs{"one_wait:1", "x", "other_wait", "^one_wait"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("of_result")), (Inputs{"one_wait:1", "^other"}));
  DOCTEST_CHECK_EQ(nodes.at("stays").op(), "LibraAllReduce");
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("stays")), (Inputs{"z", "^other_wait"}));
  std::string reason;
  DOCTEST_CHECK(IsLive(builder.def, &reason));
}

DOCTEST_TEST_CASE("NamesAreNotTakenTwice") {
  testing::Graph builder = TwoGroups();
  builder.Add("NoOp", "one_wait", {"^one"});
  SplitIntoStartDone({"one", "other"}, &builder.def);
  const auto nodes = ByName(builder.def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("one_wait")), (Inputs{"^one_wait_1"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("one_wait_1")), (Inputs{"one", "one:1", "one:2"}));
}

}  // namespace
}  // namespace tf_libra
