// When there is something to fuse, and what comes of groups of none, one and several tensors.

#include "passes/libra_rewrite.h"

#include <map>
#include <string>
#include <vector>

#include "passes/indexed_graph.h"
#include "passes/testing.h"

namespace tf_libra {
namespace {

using Groups = std::vector<std::vector<std::string>>;

struct FuseResult {
  bool is_changed;
  tensorflow::GraphDef graph;
  GraphReport report;

  // Inputs of each all-reduce that was written.
  std::map<std::string, std::vector<std::string>> Written() const {
    std::map<std::string, std::vector<std::string>> written;
    for (const auto& node : graph.node()) {
      if (IsWritten(node)) written[node.name()] = {node.input().begin(), node.input().end()};
    }
    return written;
  }
};

FuseResult Fuse(const tensorflow::GraphDef& graph, const Groups& groups,
                bool after_backward = false) {
  RegisteredPlan plan{"plan", "digest", {}, after_backward};
  for (const auto& names : groups) plan.groups.push_back({names, 1, 0});
  std::string reason;
  const auto rewriter = MakeRewriter("LibraAllReduce", &reason);
  FuseResult outcome{false, {}, {}};
  outcome.is_changed = FuseGroups(plan, *rewriter, {}, graph, &outcome.graph, &outcome.report);
  DOCTEST_CHECK_EQ(outcome.is_changed, outcome.graph.node_size() > 0);
  if (outcome.is_changed) DOCTEST_CHECK(IsLive(outcome.graph, &reason));
  return outcome;
}

// Gradients a, b, ..., each read by an update.
testing::Graph Step(int num_tensors) {
  testing::Graph builder;
  for (int i = 0; i < num_tensors; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    builder.Reduce(name, "grad_" + name);
    builder.Add("Identity", "update_" + name, {name});
  }
  return builder;
}

DOCTEST_TEST_CASE("WithoutGradientsNothingHappens") {
  DOCTEST_CHECK(!Fuse(Step(0).def, {{"a"}}).is_changed);
  const FuseResult of_another = Fuse(Step(2).def, {{"x"}});
  DOCTEST_CHECK(!of_another.is_changed);
  DOCTEST_CHECK(!of_another.report.skipped.empty());
}

DOCTEST_TEST_CASE("OneTensorIsAGroup") {
  const FuseResult outcome = Fuse(Step(1).def, {{"a"}});
  DOCTEST_CHECK(outcome.Written() == (std::map<std::string, std::vector<std::string>>{
                                         {"tf_libra/plan/group_0", {"grad_a"}}}));
  DOCTEST_CHECK_EQ(outcome.report.skipped.size(), 0u);
}

DOCTEST_TEST_CASE("GroupsComeOneBehindTheOther") {
  const FuseResult outcome = Fuse(Step(4).def, {{"b"}, {"a", "d"}, {"c"}});
  const auto written = outcome.Written();
  DOCTEST_CHECK_EQ(written.size(), 3u);
  DOCTEST_CHECK_EQ(written.at("tf_libra/plan/group_1"),
                   (std::vector<std::string>{"grad_a", "grad_d", "^tf_libra/plan/group_0"}));
  DOCTEST_CHECK_EQ(written.at("tf_libra/plan/group_2"),
                   (std::vector<std::string>{"grad_c", "^tf_libra/plan/group_1"}));
}

DOCTEST_TEST_CASE("AfterBackwardAllWaitForAllGradients") {
  for (const int num_tensors : {1, 3}) {
    Groups groups;
    for (int i = 0; i < num_tensors; ++i) groups.push_back({std::string(1, 'a' + i)});
    const FuseResult outcome = Fuse(Step(num_tensors).def, groups, /*after_backward=*/true);
    int num_waited_for = 0;
    for (const auto& node : outcome.graph.node()) {
      if (node.name() == "tf_libra/plan/after_backward") num_waited_for = node.input_size();
    }
    DOCTEST_CHECK_EQ(num_waited_for, num_tensors);
    for (const auto& [name, inputs] : outcome.Written()) {
      int waits = 0;
      for (const auto& input : inputs) waits += input == "^tf_libra/plan/after_backward";
      DOCTEST_CHECK_EQ(waits, 1);
    }
  }
}

// One that needs the other's result cannot be one with it.
DOCTEST_TEST_CASE("WhatDependsOnEachOtherStaysApart") {
  testing::Graph builder = Step(1);
  builder.Add("Neg", "grad_b", {"a"});
  builder.Reduce("b", "grad_b");
  const auto written = Fuse(builder.def, {{"a", "b"}}).Written();
  DOCTEST_CHECK_EQ(written.size(), 2u);
}

DOCTEST_TEST_CASE("ASecondRunFindsNothing") {
  const FuseResult once = Fuse(Step(3).def, {{"a", "b"}, {"c"}});
  DOCTEST_CHECK(once.is_changed);
  DOCTEST_CHECK(!Fuse(once.graph, {{"a", "b"}, {"c"}}).is_changed);
}

DOCTEST_TEST_CASE("AGraphThatIsNotLiveIsLeftAlone") {
  testing::Graph builder = Step(2);
  builder.Add("Neg", "x", {"y"});
  builder.Add("Neg", "y", {"x"});
  const FuseResult outcome = Fuse(builder.def, {{"a", "b"}});
  DOCTEST_CHECK(!outcome.is_changed);
  DOCTEST_CHECK_EQ(outcome.report.skipped.size(), 1u);
}

}  // namespace
}  // namespace tf_libra
