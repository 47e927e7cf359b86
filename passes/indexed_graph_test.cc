#include "passes/indexed_graph.h"

#include <algorithm>
#include <optional>
#include <string>

#include "passes/testing.h"

namespace tf_libra {
namespace {

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

DOCTEST_TEST_CASE("InputsAreNumbered") {
  testing::Graph graph;
  graph.Add("AddN", "sum", {"x", "split:1", "^done"});
  graph.Add("Const", "x");
  graph.Add("Split", "split", {"x"});
  graph.Add("NoOp", "done");
  std::string why;
  const std::optional<IndexedGraph> indexed = IndexGraph(graph.def, &why);
  DOCTEST_CHECK(indexed.has_value());
  DOCTEST_CHECK_EQ(indexed->index.at("split"), 2);
  DOCTEST_CHECK_EQ(indexed->fanins[0].size(), 3u);
  DOCTEST_CHECK_EQ(indexed->fanins[0][1].node, 2);
  DOCTEST_CHECK_EQ(indexed->fanins[0][1].port, 1);
  DOCTEST_CHECK_EQ(indexed->fanins[0][2].port, -1);
  DOCTEST_CHECK_EQ(indexed->order.back(), 0);
}

DOCTEST_TEST_CASE("WhatIsNotWellFormedIsRefused") {
  std::string why;
  testing::Graph twice;
  twice.Add("Const", "x");
  twice.Add("Const", "x");
  DOCTEST_CHECK(!IsLive(twice.def, &why));
  DOCTEST_CHECK(Contains(why, "two nodes have the name 'x'"));
  testing::Graph missing;
  missing.Add("Neg", "x", {"y"});
  DOCTEST_CHECK(!IsLive(missing.def, &why));
  DOCTEST_CHECK(Contains(why, "'y'"));
}

DOCTEST_TEST_CASE("NodesThatWaitForEachOtherAreNamed") {
  testing::Graph graph;
  graph.Add("Const", "x");
  graph.Add("Neg", "a", {"x", "^b"});
  graph.Add("Neg", "b", {"a"});
  graph.Add("Neg", "c", {"b"});
  std::string why;
  DOCTEST_CHECK(!IsLive(graph.def, &why));
  DOCTEST_CHECK(Contains(why, "2 nodes wait for each other"));
  DOCTEST_CHECK((Contains(why, "'a'") && Contains(why, "'b'") && !Contains(why, "'c'")));
}

DOCTEST_TEST_CASE("ALoopIsLive") {
  testing::Graph graph;
  graph.Add("Const", "x");
  graph.AddLoop("loop", "x");
  graph.Add("Neg", "y", {"loop/exit"});
  std::string why;
  DOCTEST_CHECK(IsLive(graph.def, &why));
}

DOCTEST_TEST_CASE("NothingInALoopCanWaitForWhatItPutsOut") {
  testing::Graph graph;
  graph.Add("Const", "x");
  graph.AddLoop("loop", "x");
  graph.Add("Neg", "y", {"loop/exit"});
  // The only way from here to the exit leads through the back edge.
  graph.def.mutable_node(static_cast<int>(graph.def.node_size()) - 4)->add_input("^y");
  DOCTEST_CHECK_EQ(graph.def.node(graph.def.node_size() - 4).name(), std::string("loop/body"));
  std::string why;
  DOCTEST_CHECK(!IsLive(graph.def, &why));
}

DOCTEST_TEST_CASE("OneValueOfALoopCannotEnterAfterAnotherHasLeft") {
  testing::Graph graph;
  graph.Add("Const", "x");
  graph.AddLoop("loop", "x");
  graph.Add("Neg", "y", {"loop/exit"});
  (*graph.Add("Enter", "late", {"y"})->mutable_attr())["frame_name"].set_s("loop");
  std::string why;
  DOCTEST_CHECK(!IsLive(graph.def, &why));
}

DOCTEST_TEST_CASE("ALoopInALoopIsPartOfItsBody") {
  testing::Graph graph;
  graph.Add("Const", "x");
  graph.AddLoop("outer", "x");
  graph.AddLoop("inner", "outer/body");
  for (auto& node : *graph.def.mutable_node()) {
    if (node.name() == "outer/next") node.set_input(0, "inner/exit");
  }
  graph.Add("Neg", "y", {"outer/exit"});
  std::string why;
  DOCTEST_CHECK(IsLive(graph.def, &why));
  for (auto& node : *graph.def.mutable_node()) {
    if (node.name() == "inner/body") node.add_input("^y");
  }
  DOCTEST_CHECK(!IsLive(graph.def, &why));
}

}  // namespace
}  // namespace tf_libra
