#include "passes/control_flow_contexts.h"

#include <optional>
#include <string>

#include "passes/indexed_graph.h"
#include "passes/testing.h"

namespace tf_libra {
namespace {

void BranchesOfOneConditionAreOneContext() {
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
  EXPECT_SAME(context("x"), 0);
  EXPECT_SAME(context("s"), 0);
  EXPECT_SAME(context("m"), 0);
  EXPECT_THAT_TRUE(context("then") != 0);
  EXPECT_THAT_TRUE(context("then") != context("else"));
  EXPECT_SAME(context("then"), context("also_then"));
}

void AFrameIsAContext() {
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
  EXPECT_SAME(takes("outer/enter"), 0);
  EXPECT_THAT_TRUE(puts_out("outer/enter") != 0);
  EXPECT_SAME(puts_out("outer/exit"), 0);
  EXPECT_THAT_TRUE(takes("outer/exit") != 0);
  EXPECT_SAME(puts_out("y"), 0);
  EXPECT_SAME(takes("inner/enter"), puts_out("outer/body"));
  EXPECT_THAT_TRUE(puts_out("inner/body") != puts_out("outer/body"));
  EXPECT_SAME(puts_out("inner/exit"), takes("inner/enter"));
}

void ConditionsAreCompared() {
  const Condition then(1, 0, 1, ""), otherwise(1, 0, 0, ""), other(2, 0, 1, "");
  const Condition loop(-1, -1, -1, "loop");
  EXPECT_THAT_TRUE(Exclude({then, other}, {loop, otherwise}));
  EXPECT_THAT_TRUE(!Exclude({then}, {then, other}));
  EXPECT_THAT_TRUE(!Exclude({loop}, {Condition(-1, -1, -1, "another")}));
  EXPECT_THAT_TRUE(Common({then, loop}, {other, loop}) == Conditions{loop});
  EXPECT_THAT_TRUE(IsBranchOf({then, loop}, {loop}));
  EXPECT_THAT_TRUE(!IsBranchOf({then, loop}, {then}));
  EXPECT_THAT_TRUE(!IsBranchOf({then}, {other}));
}

}  // namespace
}  // namespace tf_libra

int main() {
  using namespace tf_libra;
  return testing::RunTests({
      {"BranchesOfOneConditionAreOneContext", BranchesOfOneConditionAreOneContext},
      {"AFrameIsAContext", AFrameIsAContext},
      {"ConditionsAreCompared", ConditionsAreCompared},
  });
}
