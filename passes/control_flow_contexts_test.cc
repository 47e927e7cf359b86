#include "passes/control_flow_contexts.h"

#include <optional>
#include <string>

#include "passes/indexed_graph.h"
#include "passes/testing.h"

namespace tf_libra {
namespace {

DOCTEST_TEST_CASE("BranchesOfOneConditionAreOneContext") {
  testing::Graph graph;
  graph.Add("Const", "x");
  graph.Add("Const", "if");
  graph.Add("Switch", "s", {"x", "if"});
  graph.Add("Switch", "t", {"x", "if"});
  graph.Add("Neg", "else", {"s"});
  graph.Add("Neg", "then", {"s:1"});
  graph.Add("Neg", "also_then", {"t:1"});
  graph.Add("Merge", "m", {"else", "then"});
  std::string why;
  const std::optional<IndexedGraph> indexed = IndexGraph(graph.def, &why);
  const auto context = [&](const char* name) { return indexed->contexts[indexed->index.at(name)]; };
  DOCTEST_CHECK_EQ(context("x"), 0);
  DOCTEST_CHECK_EQ(context("s"), 0);
  DOCTEST_CHECK_EQ(context("m"), 0);
  DOCTEST_CHECK(context("then") != 0);
  DOCTEST_CHECK(context("then") != context("else"));
  DOCTEST_CHECK_EQ(context("then"), context("also_then"));
}

DOCTEST_TEST_CASE("AFrameIsAContext") {
  testing::Graph graph;
  graph.Add("Const", "x");
  graph.AddLoop("outer", "x");
  graph.AddLoop("inner", "outer/body");
  for (auto& node : *graph.def.mutable_node()) {
    if (node.name() == "outer/next") node.set_input(0, "inner/exit");
  }
  graph.Add("Neg", "y", {"outer/exit"});
  std::string why;
  const std::optional<IndexedGraph> indexed = IndexGraph(graph.def, &why);
  const auto puts_out = [&](const char* name) {
    return indexed->contexts[indexed->index.at(name)];
  };
  const auto takes = [&](const char* name) {
    return indexed->input_contexts[indexed->index.at(name)];
  };
  DOCTEST_CHECK_EQ(takes("outer/enter"), 0);
  DOCTEST_CHECK(puts_out("outer/enter") != 0);
  DOCTEST_CHECK_EQ(puts_out("outer/exit"), 0);
  DOCTEST_CHECK(takes("outer/exit") != 0);
  DOCTEST_CHECK_EQ(puts_out("y"), 0);
  DOCTEST_CHECK_EQ(takes("inner/enter"), puts_out("outer/body"));
  DOCTEST_CHECK(puts_out("inner/body") != puts_out("outer/body"));
  DOCTEST_CHECK_EQ(puts_out("inner/exit"), takes("inner/enter"));
}

DOCTEST_TEST_CASE("ConditionsAreCompared") {
  const Condition then = Condition::Branch({1, 0}, 1), otherwise = Condition::Branch({1, 0}, 0);
  const Condition other = Condition::Branch({2, 0}, 1), port = Condition::Branch({1, 1}, 0);
  const Condition loop = Condition::Loop("loop");
  DOCTEST_CHECK(Exclude({then, other}, {loop, otherwise}));
  DOCTEST_CHECK(!Exclude({then}, {then, other}));
  DOCTEST_CHECK(!Exclude({then}, {port}));  // of another value of the same node
  DOCTEST_CHECK(!Exclude({loop}, {Condition::Loop("another")}));
  DOCTEST_CHECK(Common({then, loop}, {other, loop}) == Conditions{loop});
  DOCTEST_CHECK(IsBranchOf({then, loop}, {loop}));
  DOCTEST_CHECK(!IsBranchOf({then, loop}, {then}));
  DOCTEST_CHECK(!IsBranchOf({then}, {other}));
}

}  // namespace
}  // namespace tf_libra
