#include "passes/pending_all_reduces.h"

#include <optional>
#include <string>
#include <vector>

#include "passes/indexed_graph.h"
#include "passes/rewriter.h"
#include "passes/testing.h"

namespace tf_libra {
namespace {

using testing::Graph;

struct Found {
  std::optional<IndexedGraph> graph;
  std::vector<bool> between;
  std::vector<PlannedAllReduce> marked;
  std::vector<Skipped> skipped;
};

// What is marked in a graph, under a plan of one group.
Found FindIn(const Graph& builder, std::vector<std::string> tensors) {
  Found found;
  std::string reason;
  found.graph = IndexGraph(builder.def, &reason);
  DOCTEST_CHECK(found.graph.has_value());
  const RegisteredPlan plan{"plan", "digest", {{std::move(tensors), 1, 0}}, false};
  const auto rewriter = MakeRewriter("LibraAllReduce", &reason);
  found.marked = FindPlannedAllReduces(*found.graph, plan, *rewriter, {}, &found.skipped);
  found.between = NodesBetween(*found.graph, FindAllReduces(*found.graph));
  return found;
}

// A branch of a conditional, with `size` all-reduces that depend on `input`, and its end.
void AddBranch(const std::string& input, const std::string& tensor, int size, Graph* builder) {
  builder->Add("Const", "predicate");
  builder->Add("Switch", "switch", {input, "predicate"});
  for (int i = 0; i < size; ++i) {
    const std::string name = tensor + std::to_string(i);
    builder->Add("Identity", "grad_" + name, {"switch:1"});
    builder->Reduce("inside_" + name, "grad_" + name, name);
  }
}

DOCTEST_TEST_CASE("CopiesLieOneBehindTheOther") {
  Graph builder;
  builder.Reduce("a", "grad");
  builder.Add("Identity", "next", {"a"});
  builder.Reduce("a_1", "next", "a");
  Found found = FindIn(builder, {"a"});
  std::string reason;
  DOCTEST_CHECK(FindCopies(*found.graph, found.between, &found.marked, &reason));
  DOCTEST_CHECK_EQ(found.marked[0].copy, 0);
  DOCTEST_CHECK_EQ(found.marked[1].copy, 1);
}

DOCTEST_TEST_CASE("CopiesWithoutAnOrderAreADoubt") {
  Graph builder;
  builder.Reduce("a", "grad");
  builder.Reduce("a_1", "grad", "a");
  Found found = FindIn(builder, {"a"});
  std::string reason;
  DOCTEST_CHECK(!FindCopies(*found.graph, found.between, &found.marked, &reason));
  DOCTEST_CHECK_EQ(reason, testing::Contains("neither before nor after"));
}

// More tensors than are looked at in one go, each in three copies.
DOCTEST_TEST_CASE("ManyTensorsInManyCopies") {
  for (const int size : {31, 32, 33, 100}) {
    Graph builder;
    std::vector<std::string> tensors, before;
    for (int i = 0; i < size; ++i) tensors.push_back("t" + std::to_string(i));
    for (int copy = 0; copy < 3; ++copy) {
      std::vector<std::string> reduced;
      for (const std::string& tensor : tensors) {
        const std::string name = tensor + "_" + std::to_string(copy);
        builder.Add("Identity", "grad_" + name, before);
        builder.Reduce(name, "grad_" + name, tensor);
        reduced.push_back("^" + name);
      }
      const std::string end = "end" + std::to_string(copy);
      builder.Add("NoOp", end, reduced);
      before = {"^" + end};
    }
    Found found = FindIn(builder, tensors);
    std::string reason;
    DOCTEST_CHECK(FindCopies(*found.graph, found.between, &found.marked, &reason));
    for (const PlannedAllReduce& m : found.marked) {
      const std::string& name = builder.def.node(m.node).name();
      DOCTEST_CHECK_EQ(name, m.tensor + "_" + std::to_string(m.copy));
    }
  }
}

DOCTEST_TEST_CASE("TwoFunctionsAreNoCopiesOfOneStep") {
  Graph builder;
  tensorflow::AddNodeAttr("function", "one", builder.Reduce("a", "grad"));
  tensorflow::AddNodeAttr("function", "two", builder.Reduce("a_1", "grad", "a"));
  Found found = FindIn(builder, {"a"});
  std::string reason;
  DOCTEST_CHECK(FindCopies(*found.graph, found.between, &found.marked, &reason));
  DOCTEST_CHECK(found.marked[0].copy != found.marked[1].copy);
  DOCTEST_CHECK(
      (found.marked[0].kind < found.marked[1].kind || found.marked[1].kind < found.marked[0].kind));
}

// Tensors that are aside, of a step with some all-reduces in a branch.
std::vector<std::string> AsideWith(int inside, int outside) {
  Graph builder;
  std::vector<std::string> tensors;
  for (int i = 0; i < outside; ++i) {
    const std::string name = "out" + std::to_string(i);
    builder.Reduce("outside_" + name, "grad_" + name, name);
    tensors.push_back(name);
  }
  AddBranch("outside_out0", "in", inside, &builder);
  for (int i = 0; i < inside; ++i) tensors.push_back("in" + std::to_string(i));
  Found found = FindIn(builder, tensors);
  FindOutOfStep(*found.graph, &found.marked);
  std::string reason;
  DOCTEST_CHECK(FindCopies(*found.graph, found.between, &found.marked, &reason));
  std::vector<std::string> aside;
  for (const PlannedAllReduce& m : found.marked) {
    if (m.out_of_step) aside.push_back(m.tensor);
    DOCTEST_CHECK_EQ(m.copy, m.out_of_step ? 1 : 0);
  }
  const RegisteredPlan plan{"plan", "digest", {{tensors, 1, 0}}, false};
  ReportMissing(*found.graph, plan, found.marked, &found.skipped);
  DOCTEST_CHECK_EQ(found.skipped.size(), 0u);
  return aside;
}

DOCTEST_TEST_CASE("TheSmallerPartOfAStepIsAside") {
  for (const std::string& tensor : AsideWith(2, 3))
    DOCTEST_CHECK_EQ(tensor, testing::Contains("in"));
  for (const std::string& tensor : AsideWith(3, 3))
    DOCTEST_CHECK_EQ(tensor, testing::Contains("in"));
  for (const std::string& tensor : AsideWith(4, 3))
    DOCTEST_CHECK_EQ(tensor, testing::Contains("out"));
  DOCTEST_CHECK_EQ(AsideWith(2, 3).size(), 2u);
  DOCTEST_CHECK_EQ(AsideWith(3, 3).size(), 3u);
  DOCTEST_CHECK_EQ(AsideWith(4, 3).size(), 3u);
}

DOCTEST_TEST_CASE("CopiesInABranchAreNotAside") {
  Graph builder;
  builder.Reduce("outside", "grad", "in0");
  AddBranch("outside", "in", 1, &builder);
  Found found = FindIn(builder, {"in0"});
  FindOutOfStep(*found.graph, &found.marked);
  DOCTEST_CHECK((!found.marked[0].out_of_step && !found.marked[1].out_of_step));
}

DOCTEST_TEST_CASE("WhatIsMissingIsSaidOnce") {
  Graph builder;
  builder.Reduce("a", "grad_a");
  builder.Add("Identity", "next", {"a"});
  builder.Reduce("a_1", "next", "a");
  builder.Reduce("b", "grad_b");
  Found found = FindIn(builder, {"a", "b", "c"});
  std::string reason;
  DOCTEST_CHECK(FindCopies(*found.graph, found.between, &found.marked, &reason));
  const RegisteredPlan plan{"plan", "digest", {{{"a", "b", "c"}, 1, 0}}, false};
  ReportMissing(*found.graph, plan, found.marked, &found.skipped);
  std::vector<std::string> reasons;
  for (const Skipped& one : found.skipped) reasons.push_back(one.name + ": " + one.reason);
  DOCTEST_CHECK_EQ(reasons,
                   (std::vector<std::string>{"b: group 0: has no all-reduce in copy 1 of the step",
                                             "c: group 0: has no all-reduce"}));
}

// The ranks number the nodes of a graph differently, and name what is written by copies.
DOCTEST_TEST_CASE("CopiesAreNumberedAlikeWhateverTheOrderOfNodes") {
  Graph builder;
  builder.Add("Placeholder", "x");
  builder.Add("Placeholder", "if");
  builder.Add("Switch", "switch", {"x", "if"});
  for (const int port : {0, 1}) {
    const std::string branch = port == 0 ? "else" : "then";
    builder.Add("Neg", "grad_" + branch, {"switch:" + std::to_string(port)});
    builder.Reduce(branch, "grad_" + branch, "a");
  }
  Graph backwards;
  for (int i = builder.def.node_size() - 1; i >= 0; --i) {
    *backwards.def.add_node() = builder.def.node(i);
  }
  for (const Graph* graph : {&builder, &backwards}) {
    Found found = FindIn(*graph, {"a"});
    std::string reason;
    DOCTEST_CHECK(FindCopies(*found.graph, found.between, &found.marked, &reason));
    for (const PlannedAllReduce& m : found.marked) {
      DOCTEST_CHECK_EQ(m.copy, graph->def.node(m.node).name() == "else" ? 0 : 1);
    }
  }
}

// Rows that are gathered name something in place of a plan, in a group of no number, which may be
// written out.
DOCTEST_TEST_CASE("GatheredRowsAreNeitherMarkedNorWritten") {
  Graph builder;
  tensorflow::NodeDef* rows = builder.Reduce("rows", "local_rows");
  DOCTEST_CHECK(IsPendingAllReduce(*rows));
  tensorflow::AddNodeAttr("plan", "-", rows);
  for (int i = 0; i < 2; ++i) {
    DOCTEST_CHECK(!IsPendingAllReduce(*rows));
    DOCTEST_CHECK(!IsWritten(*rows));
    tensorflow::SetAttrValue(-1, &(*rows->mutable_attr())["group"]);
  }
  tensorflow::SetAttrValue(0, &(*rows->mutable_attr())["group"]);
  DOCTEST_CHECK(IsWritten(*rows));
}

DOCTEST_TEST_CASE("PlannedRowsAreOfTheirOwnKind") {
  Graph builder;
  builder.Reduce("dense", "grad_dense");
  builder.Add("Const", "ends");
  builder.Add("Const", "shared");
  for (const std::string name : {"a", "b", "c", "d"}) {
    tensorflow::NodeDef* const rows = builder.Reduce(name, "local_" + name);
    tensorflow::AddNodeAttr("E", name < "c" ? 1 : 2, rows);
    if (name != "b") rows->add_input("ends");
    if (name == "c") rows->add_input("shared");
  }
  const Found found = FindIn(builder, {"dense", "a", "b", "c", "d"});
  DOCTEST_REQUIRE_EQ(found.marked.size(), 3u);  // b and d lack an input
  for (const PlannedAllReduce& m : found.marked) {
    DOCTEST_CHECK_EQ(m.kind.rows, m.tensor == "dense" ? "" : m.tensor);
  }
}

}  // namespace
}  // namespace tf_libra
