// Decisions are read off the report of FuseGroups, whose groups stand in the order in which they
// run, and off the control edges of what stays.

#include "passes/all_reduce_grouping.h"

#include <algorithm>
#include <string>
#include <vector>

#include "passes/libra_rewrite.h"
#include "passes/testing.h"

namespace tf_libra {
namespace {

using testing::Graph;

struct Result {
  bool changed;
  tensorflow::GraphDef graph;
  GraphReport report;

  // "a b | c": tensors of the groups in the order in which they run.
  std::string Order() const {
    std::string text;
    for (const ReportedGroup& group : report.groups) {
      if (!text.empty()) text += " |";
      for (const ReportedTensor& tensor : group.tensors) {
        text += (text.empty() ? "" : " ") + tensor.name;
      }
    }
    return text;
  }

  bool HasInput(const std::string& node, const std::string& input) const {
    for (const auto& n : graph.node()) {
      if (n.name() != node) continue;
      return std::find(n.input().begin(), n.input().end(), input) != n.input().end();
    }
    return false;
  }
};

Result Fuse(const Graph& builder, const std::vector<std::vector<std::string>>& groups,
            const NodesToKeep& keep = {}) {
  RegisteredPlan plan{"plan", "digest", {}, false};
  for (const auto& tensors : groups) plan.groups.push_back({tensors, 1, 0});
  std::string reason;
  Result result;
  result.changed = FuseGroups(plan, *MakeRewriter("LibraAllReduce", &reason), keep, builder.def,
                              &result.graph, &result.report);
  return result;
}

std::string Group(int group) { return "tf_libra/plan/group_" + std::to_string(group); }

// `u` stays, and group 1 depends on it; group 0 has its input behind `depth` nodes.
Result WithOneThatStays(int depth_of_staying, int depth_of_group) {
  Graph builder;
  builder.Reduce("u", builder.Chain("staying", depth_of_staying));
  builder.Reduce("a", builder.Chain("group", depth_of_group));
  builder.Add("Identity", "grad_b", {"u"});
  builder.Reduce("b", "grad_b");
  return Fuse(builder, {{"a"}, {"b"}});
}

DOCTEST_TEST_CASE("WhatStaysComesFirstOnlyIfItIsThereEarlier") {
  for (const int depth : {2, 5, 9}) {
    const Result earlier = WithOneThatStays(depth - 1, depth);
    DOCTEST_CHECK(earlier.HasInput(Group(0), "^u"));
    const Result not_earlier = WithOneThatStays(depth, depth);
    DOCTEST_CHECK(!not_earlier.HasInput(Group(0), "^u"));
    DOCTEST_CHECK(not_earlier.HasInput("u", "^" + Group(0)));
    DOCTEST_CHECK(not_earlier.HasInput(Group(1), "^u"));
  }
}

DOCTEST_TEST_CASE("WhatNothingDependsOnComesLast") {
  Graph builder;
  builder.Reduce("u", "early");
  builder.Reduce("a", builder.Chain("late", 7), "", {"^u"});
  const Result result = Fuse(builder, {{"a"}});
  DOCTEST_CHECK(result.HasInput("u", "^" + Group(0)));
  DOCTEST_CHECK(!result.HasInput(Group(0), "^u"));
}

DOCTEST_TEST_CASE("DtypesReductionsAndFunctionsAreApart") {
  Graph builder;
  builder.Reduce("a", "grad_a");
  builder.Reduce("b", "grad_b");
  tensorflow::SetAttrValue("sum", &(*builder.Reduce("c", "grad_c")->mutable_attr())["reduction"]);
  tensorflow::SetAttrValue("f", &(*builder.Reduce("d", "grad_d")->mutable_attr())["function"]);
  tensorflow::SetAttrValue(tensorflow::DT_HALF,
                           &(*builder.Reduce("e", "grad_e")->mutable_attr())["T"]);
  builder.Reduce("f", "grad_f");
  const Result result = Fuse(builder, {{"a", "b", "c", "d", "e", "f"}});
  std::vector<std::string> found;
  for (const ReportedGroup& group : result.report.groups) {
    std::string names;
    for (const ReportedTensor& tensor : group.tensors) names += tensor.name;
    found.push_back(names);
  }
  std::sort(found.begin(), found.end());
  DOCTEST_CHECK(found == std::vector<std::string>({"abf", "c", "d", "e"}));
}

DOCTEST_TEST_CASE("APathForbidsFusingAndTheOrderOfTracingDoesNot") {
  Graph traced;
  traced.Reduce("a", "grad_a");
  traced.Reduce("b", "grad_b", "", {"^a"});
  DOCTEST_CHECK_EQ(Fuse(traced, {{"a", "b"}}).Order(), "a b");
  Graph path;
  path.Reduce("a", "grad_a");
  path.Add("NoOp", "between", {"^a"});
  path.Reduce("b", "grad_b", "", {"^between"});
  DOCTEST_CHECK_EQ(Fuse(path, {{"a", "b"}}).Order(), "a | b");
}

DOCTEST_TEST_CASE("OrderIsThatOfThePlanUnlessTheGraphForbidsIt") {
  Graph builder;
  builder.Reduce("a", "grad_a");
  builder.Reduce("b", "grad_b");
  builder.Add("Identity", "grad_c", {"b"});
  builder.Reduce("c", "grad_c");
  DOCTEST_CHECK_EQ(Fuse(builder, {{"b"}, {"a"}, {"c"}}).Order(), "b | a | c");
  DOCTEST_CHECK_EQ(Fuse(builder, {{"c"}, {"a"}, {"b"}}).Order(), "a | b | c");
}

// Two conditionals that know nothing of each other.
DOCTEST_TEST_CASE("BranchesOfTwoConditionalsHaveAnOrder") {
  Graph builder;
  builder.Add("Placeholder", "x");
  builder.Reduce("a", "grad_a");
  for (const std::string name : {"first", "second"}) {
    builder.Add("Placeholder", name + "/if");
    builder.Add("Switch", name + "/switch", {"x", name + "/if"});
    builder.Add("Neg", name + "/grad", {name + "/switch:1"});
    builder.Reduce(name, name + "/grad");
    builder.Add("Merge", name + "/merge", {name + "/switch", name});
  }
  builder.Reduce("b", "grad_b");
  const Result result = Fuse(builder, {{"a", "first", "second", "b"}});
  DOCTEST_CHECK_EQ(result.Order(), "a b | first | second");
  DOCTEST_CHECK(result.HasInput("second/switch", "^first/merge"));
  DOCTEST_CHECK(result.HasInput("first/switch", "^" + Group(0)));
  DOCTEST_CHECK_EQ(result.report.skipped.size(), 0u);
}

// oneDNN makes one op of the gradients of a bias and a filter: that of the bias, which depends on
// no all-reduce itself, then waits for what the filter's depends on.
DOCTEST_TEST_CASE("WhatBecomesOneOpHasItsPathsTogether") {
  for (const bool reads_the_same : {true, false}) {
    Graph builder;
    builder.Add("Placeholder", "x");
    builder.Add("Neg", "other", {"x"});
    builder.Reduce("a", "grad_a");
    builder.Add("Identity", "activation", {"a"});
    builder.Add("Const", "shape");
    builder.Add("BiasAddGrad", "bias", {reads_the_same ? "x" : "other"});
    builder.Add("Conv2DBackpropFilter", "filter", {"activation", "shape", "x"});
    builder.Reduce("b", "bias");
    builder.Reduce("c", "filter");
    DOCTEST_CHECK_EQ(Fuse(builder, {{"a", "b"}, {"c"}}).Order(),
                     reads_the_same ? "a | b | c" : "a b | c");
  }
}

}  // namespace
}  // namespace tf_libra
