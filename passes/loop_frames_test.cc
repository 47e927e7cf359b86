// Loops as seen by code that walks along edges: all iterations as one.

#include "passes/loop_frames.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "passes/indexed_graph.h"
#include "passes/testing.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace tf_libra {
namespace {

using NameSet = std::set<std::string>;

// The control inputs that are added, by the name of who gets them.
std::map<std::string, NameSet> Added(const tensorflow::GraphDef& graph) {
  std::map<std::string, int> index;
  for (int i = 0; i < graph.node_size(); ++i) index[graph.node(i).name()] = i;
  std::vector<std::vector<Fanin>> fanins(graph.node_size());
  for (int i = 0; i < graph.node_size(); ++i) {
    for (const std::string& input : graph.node(i).input()) {
      const auto id = tensorflow::ParseTensorName(input);
      const int from = index.at(std::string(id.node()));
      const bool is_back = graph.node(from).op() == "NextIteration";
      if (!is_back) fanins[i].push_back({from, id.index()});
    }
  }
  const auto before = fanins;
  CloseLoops(graph, TopologicalOrder(fanins), &fanins);
  std::map<std::string, NameSet> added;
  for (int i = 0; i < graph.node_size(); ++i) {
    for (size_t j = before[i].size(); j < fanins[i].size(); ++j) {
      DOCTEST_CHECK_EQ(fanins[i][j].port, kControl);
      added[graph.node(i).name()].insert(graph.node(fanins[i][j].node).name());
    }
  }
  return added;
}

DOCTEST_TEST_CASE("WithoutLoopsNothingIsAdded") {
  testing::Graph builder;
  DOCTEST_CHECK_EQ(Added(builder.def).size(), 0u);
  builder.Chain("x", 3);
  DOCTEST_CHECK_EQ(Added(builder.def).size(), 0u);
}

DOCTEST_TEST_CASE("WhateverEntersLeadsToTheExit") {
  testing::Graph builder;
  builder.Add("Const", "x");
  builder.AddLoop("loop", "x");
  const auto added = Added(builder.def);
  DOCTEST_CHECK_EQ(added.size(), 1u);
  DOCTEST_CHECK(added.at("loop/exit") == (NameSet{"loop/enter", "loop/next"}));
}

DOCTEST_TEST_CASE("TheOtherExitsFollowTheFirst") {
  testing::Graph builder;
  builder.Add("Const", "x");
  builder.AddLoop("loop", "x");
  builder.Add("Exit", "loop/other", {"loop/switch"});
  builder.Add("Exit", "loop/third", {"loop/switch"});
  const auto added = Added(builder.def);
  DOCTEST_CHECK_EQ(added.size(), 3u);
  int num_first = 0;
  for (const auto& [exit, from] : added) {
    const bool is_first = from == NameSet{"loop/enter", "loop/next"};
    num_first += is_first;
    if (!is_first) {
      DOCTEST_CHECK_EQ(from.size(), 1u);
      DOCTEST_CHECK(added.at(*from.begin()) == (NameSet{"loop/enter", "loop/next"}));
    }
  }
  DOCTEST_CHECK_EQ(num_first, 1);
}

DOCTEST_TEST_CASE("ALoopThatNothingLeavesStays") {
  testing::Graph builder;
  builder.Add("Const", "x");
  builder.AddLoop("loop", "x");
  builder.def.mutable_node()->RemoveLast();
  DOCTEST_CHECK_EQ(Added(builder.def).size(), 0u);
}

DOCTEST_TEST_CASE("TwoLoopsAreClosedEachByItself") {
  testing::Graph builder;
  builder.Add("Const", "x");
  builder.AddLoop("one", "x");
  builder.AddLoop("other", "one/exit");
  const auto added = Added(builder.def);
  DOCTEST_CHECK_EQ(added.size(), 2u);
  DOCTEST_CHECK(added.at("one/exit") == (NameSet{"one/enter", "one/next"}));
  DOCTEST_CHECK(added.at("other/exit") == (NameSet{"other/enter", "other/next"}));
}

// Its frame is in that of the other, though both have the same name.
DOCTEST_TEST_CASE("ALoopInABodyIsAPartOfIt") {
  testing::Graph builder;
  builder.Add("Const", "x");
  builder.AddLoop("outer", "x");
  builder.AddLoop("inner", "outer/switch:1");
  for (auto& node : *builder.def.mutable_node()) {
    if (node.name() == "inner/enter") (*node.mutable_attr())["frame_name"].set_s("outer");
    if (node.name() == "outer/body") node.set_input(0, "inner/exit");
  }
  const auto added = Added(builder.def);
  DOCTEST_CHECK(added.at("outer/exit") == (NameSet{"outer/enter", "outer/next"}));
  DOCTEST_CHECK(added.at("inner/exit") == (NameSet{"inner/enter", "inner/next"}));
}

}  // namespace
}  // namespace tf_libra
