#include "passes/branch_checks.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "passes/testing.h"

namespace tf_libra {
namespace {

bool IsStateful(const tensorflow::NodeDef& node) { return node.op() == "Data"; }

std::vector<BranchCheck> FindChecks(const testing::Graph& graph) {
  std::string why;
  const std::optional<IndexedGraph> indexed = IndexGraph(graph.def, &why);
  DOCTEST_REQUIRE_MESSAGE(indexed.has_value(), why);
  return FindBranchChecks(*indexed, IsStateful);
}

// A conditional as TensorFlow lowers one: NAME/switch_pred/_0 is the Switch.
void AddSwitch(testing::Graph* graph, const std::string& name, const std::string& data,
               const std::string& predicate) {
  graph->Add("Switch", name + "/switch_pred/_0", {data, predicate});
}

DOCTEST_TEST_CASE("AConditionAroundAnAllReduceIsChecked") {
  testing::Graph graph;
  graph.Add("Data", "x");
  graph.Add("IsFinite", "while/body/_1/finite", {"x"});
  AddSwitch(&graph, "while/body/_1/cond", "x", "while/body/_1/finite");
  graph.Add("Neg", "gradient", {"while/body/_1/cond/switch_pred/_0:1"});
  tensorflow::AddNodeAttr("function", "step", graph.Reduce("reduce", "gradient", "w"));
  const std::vector<BranchCheck> checks = FindChecks(graph);
  DOCTEST_REQUIRE_EQ(checks.size(), 1u);
  DOCTEST_CHECK_EQ(checks[0].condition, "the condition 'cond' (by 'finite')");
  DOCTEST_CHECK_EQ(checks[0].tensor, "w");
  DOCTEST_CHECK_EQ(checks[0].function, "step");
  DOCTEST_CHECK_EQ(checks[0].key, "step/w/0");
  DOCTEST_CHECK(!checks[0].is_loop);
}

DOCTEST_TEST_CASE("AnAllReduceOutsideOfTheConditionIsNot") {
  testing::Graph graph;
  graph.Add("Data", "x");
  AddSwitch(&graph, "cond", "x", "x");
  graph.Add("Neg", "then", {"cond/switch_pred/_0:1"});
  graph.Add("Neg", "gradient", {"x"});
  graph.Reduce("reduce", "gradient", "w");
  DOCTEST_CHECK(FindChecks(graph).empty());
}

DOCTEST_TEST_CASE("APredicateOfAveragesAndConstantsIsTheSameEverywhere") {
  testing::Graph graph;
  graph.Add("Data", "x");
  graph.Add("Const", "limit");
  graph.Reduce("average", "x", "loss");
  graph.Add("Less", "small", {"average", "limit"});
  AddSwitch(&graph, "cond", "x", "small");
  graph.Add("Neg", "gradient", {"cond/switch_pred/_0:1"});
  graph.Reduce("reduce", "gradient", "w");
  DOCTEST_CHECK(FindChecks(graph).empty());
}

DOCTEST_TEST_CASE("BranchesThatReduceTheSameMayDiffer") {
  for (const char* other : {"w", "v"}) {
    testing::Graph graph;
    graph.Add("Data", "x");
    AddSwitch(&graph, "cond", "x", "x");
    graph.Add("Neg", "then", {"cond/switch_pred/_0:1"});
    graph.Add("Neg", "else", {"cond/switch_pred/_0"});
    graph.Reduce("one", "then", "w");
    graph.Reduce("other", "else", other);
    DOCTEST_CHECK_EQ(FindChecks(graph).size(), std::string(other) == "w" ? 0u : 1u);
  }
}

DOCTEST_TEST_CASE("ConditionsInConditionsAreCheckedBoth") {
  testing::Graph graph;
  graph.Add("Data", "x");
  AddSwitch(&graph, "outer", "x", "x");
  graph.Add("Data", "y", {"outer/switch_pred/_0:1"});
  AddSwitch(&graph, "inner", "y", "y");
  graph.Add("Neg", "gradient", {"inner/switch_pred/_0:1"});
  graph.Reduce("reduce", "gradient", "w");
  const std::vector<BranchCheck> checks = FindChecks(graph);
  DOCTEST_REQUIRE_EQ(checks.size(), 2u);
  DOCTEST_CHECK_EQ(checks[0].key, "/w/0");
  DOCTEST_CHECK_EQ(checks[1].key, "/w/1");
}

DOCTEST_TEST_CASE("ALoopIsCheckedBeforeItsLoopCond") {
  testing::Graph graph;
  graph.Add("Data", "x");
  graph.AddLoop("loop", "x");
  graph.Reduce("loop/reduce", "loop/body", "w");
  const std::vector<BranchCheck> checks = FindChecks(graph);
  DOCTEST_REQUIRE_EQ(checks.size(), 1u);
  DOCTEST_CHECK(checks[0].is_loop);
  DOCTEST_CHECK_EQ(checks[0].condition, "the loop 'loop'");
  DOCTEST_CHECK_EQ(graph.def.node(checks[0].predicate.node).name(), "loop/merge");
  DOCTEST_CHECK_EQ(graph.def.node(checks[0].followed.node).name(), "loop/while");
}

DOCTEST_TEST_CASE("ALoopWithAFixedNumberOfTurnsIsNot") {
  testing::Graph graph;
  graph.Add("Const", "begin");
  graph.AddLoop("loop", "begin");
  graph.Reduce("loop/reduce", "loop/body", "w");
  DOCTEST_CHECK(FindChecks(graph).empty());
}

DOCTEST_TEST_CASE("KeysDoNotDependOnTheNumbersOfNames") {
  for (const int first : {2, 9, 10}) {  // "cond_10" comes after "cond_9"
    testing::Graph graph;
    std::vector<std::string> names;
    for (const int number : {first, first + 1}) {
      const std::string name = "cond_" + std::to_string(number);
      names.push_back("the condition '" + name + "' (by 'x/" + name + "')");
      graph.Add("Data", "x/" + name);
      AddSwitch(&graph, name, "x/" + name, "x/" + name);
      graph.Add("Neg", name + "/gradient", {name + "/switch_pred/_0:1"});
      graph.Reduce(name + "/reduce", name + "/gradient", "w");
    }
    const std::vector<BranchCheck> checks = FindChecks(graph);
    DOCTEST_REQUIRE_EQ(checks.size(), 2u);
    for (int i = 0; i < 2; ++i) {
      DOCTEST_CHECK_EQ(checks[i].condition, names[i]);
      DOCTEST_CHECK_EQ(checks[i].key, "/w/" + std::to_string(i));
    }
  }
}

DOCTEST_TEST_CASE("CopiesOfHorovodsAllReduceDiffer") {
  testing::Graph graph;
  graph.Add("Data", "x");
  AddSwitch(&graph, "cond", "x", "x");
  graph.Add("Neg", "then", {"cond/switch_pred/_0:1"});
  graph.Add("Neg", "else", {"cond/switch_pred/_0"});
  for (const char* branch : {"then", "else"}) {
    tensorflow::NodeDef* const node =
        graph.Add("HorovodGroupedAllreduce", std::string("reduce_") + branch, {branch});
    tensorflow::AddNodeAttr("_tf_libra_group", 0, node);
    tensorflow::AddNodeAttr("_tf_libra_tensor_names", std::vector<std::string>{"w"}, node);
  }
  DOCTEST_CHECK_EQ(FindChecks(graph).size(), 1u);
}

DOCTEST_TEST_CASE("ResultsOfSomeRanksAreNotTheSameEverywhere") {
  for (const int set : {0, 1}) {
    testing::Graph graph;
    graph.Add("Data", "x");
    tensorflow::AddNodeAttr("process_set_id", set, graph.Add("HorovodAllreduce", "sum", {"x"}));
    graph.Add("IsFinite", "finite", {"sum"});
    AddSwitch(&graph, "cond", "x", "finite");
    graph.Add("Neg", "gradient", {"cond/switch_pred/_0:1"});
    graph.Reduce("reduce", "gradient", "w");
    DOCTEST_CHECK_EQ(FindChecks(graph).size(), set == 0 ? 0u : 1u);
  }
}

// On another rank the first predicate may be computed, and checked.
DOCTEST_TEST_CASE("KeysDoNotDependOnPredicatesWithoutACheck") {
  for (const bool is_constant : {false, true}) {
    testing::Graph graph;
    graph.Add("Data", "x");
    graph.Add(is_constant ? "Const" : "Data", "first");
    for (const std::string name : {"cond_1", "cond_2"}) {
      AddSwitch(&graph, name, "x", name == "cond_1" ? "first" : "x");
      graph.Add("Neg", name + "/gradient", {name + "/switch_pred/_0:1"});
      graph.Reduce(name + "/reduce", name + "/gradient", "w");
    }
    const std::vector<BranchCheck> checks = FindChecks(graph);
    DOCTEST_REQUIRE_EQ(checks.size(), is_constant ? 1u : 2u);
    DOCTEST_CHECK_EQ(checks.back().key, "/w/1");
  }
}

}  // namespace
}  // namespace tf_libra
