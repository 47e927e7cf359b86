#include "passes/backward_order.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "passes/control_edges.h"
#include "passes/indexed_graph.h"
#include "passes/testing.h"

namespace tf_libra {
namespace {

using Names = std::vector<std::string>;

// Layers 3 to 1 of a network: dx3 leads from the gradient g3 to g2, and so on; dw3 is layer 3's
// gradient of weights, which r3 reduces and u3 applies.
testing::Graph Chain() {
  testing::Graph graph;
  graph.Add("Placeholder", "x");
  graph.Add("Neg", "g3", {"x"});
  graph.Add("Const", "shape", {"^g3"});
  for (const char* layer : {"3", "2", "1"}) {
    const std::string k = layer;
    graph.Add("Mul", "dw" + k, {"g" + k, "shape"});
    graph.Add("LibraAllReduce", "r" + k, {"dw" + k});
    graph.Add("Neg", "u" + k, {"r" + k});
    if (k != "1") {
      graph.Add("Neg", "dx" + k, {"g" + k});
      graph.Add("Neg", "g" + std::to_string(k[0] - '1'), {"dx" + k});
    }
  }
  return graph;
}

const Names kAllReduces = {"r3", "r2", "r1"};

tensorflow::GraphDef Order(const testing::Graph& graph, const std::vector<Names>& groups,
                           const Names& all_reduces = kAllReduces) {
  std::string why;
  const std::optional<IndexedGraph> indexed = IndexGraph(graph.def, &why);
  DOCTEST_CHECK_EQ(why, std::string());
  const std::vector<ControlEdge> waits = KeepBackwardOrder({{groups, all_reduces}}, *indexed);
  DOCTEST_CHECK(!CloseCycle(waits, *indexed));
  tensorflow::GraphDef def = graph.def;
  WriteControlEdges(waits, *indexed, "join_", &def);
  DOCTEST_CHECK(IsLive(def, &why));
  return def;
}

Names Controls(const tensorflow::GraphDef& def, const std::string& name) {
  Names controls;
  for (const auto& node : def.node()) {
    if (node.name() != name) continue;
    for (const std::string& input : node.input()) {
      if (input[0] == '^') controls.push_back(input.substr(1));
    }
  }
  std::sort(controls.begin(), controls.end());
  return controls;
}

DOCTEST_TEST_CASE("GradientsOfOneLayerStaySideBySide") {
  const auto def = Order(Chain(), {{"dw3"}, {"dw2"}, {"dw1"}});
  DOCTEST_CHECK_EQ(Controls(def, "dx3"), Names{});
  DOCTEST_CHECK_EQ(Controls(def, "dw2"), Names{"dw3"});
  DOCTEST_CHECK_EQ(Controls(def, "dx2"), Names{"dw3"});
  DOCTEST_CHECK_EQ(Controls(def, "dw1"), Names{"dw2"});
}

DOCTEST_TEST_CASE("UpdatesWaitForTheLastGradient") {
  const auto def = Order(Chain(), {{"dw3"}, {"dw2"}, {"dw1"}});
  for (const char* update : {"u3", "u2", "u1"})
    DOCTEST_CHECK_EQ(Controls(def, update), Names{"dw1"});
}

DOCTEST_TEST_CASE("WithinAGroupNothingIsOrdered") {
  auto def = Order(Chain(), {{"dw3", "dw2", "dw1"}});
  for (const char* name : {"dx3", "dx2", "dw2", "dw1"})
    DOCTEST_CHECK_EQ(Controls(def, name), Names{});
  // Three gradients and three updates would be nine edges.
  DOCTEST_CHECK_EQ(Controls(def, "u2"), Names{"join_0"});
  DOCTEST_CHECK_EQ(Controls(def, "join_0"), (Names{"dw1", "dw2", "dw3"}));
  def = Order(Chain(), {{"dw3", "dw2"}, {"dw1"}});
  DOCTEST_CHECK_EQ(Controls(def, "dx3"), Names{});
  DOCTEST_CHECK_EQ(Controls(def, "dx2"), Names{"dw3"});
  DOCTEST_CHECK_EQ(Controls(def, "dw1"), Names{"dw2"});
}

DOCTEST_TEST_CASE("ConstantsAreNotHeldUp") {
  testing::Graph graph = Chain();
  graph.Add("Const", "axes", {"^g1"});
  graph.Add("Sum", "sum", {"g1", "axes"});
  graph.Add("Reshape", "db1", {"sum", "shape"});
  graph.Add("LibraAllReduce", "rb", {"db1"});
  const auto def = Order(graph, {{"dw3"}, {"dw2"}, {"dw1"}, {"db1"}}, {"r3", "r2", "r1", "rb"});
  DOCTEST_CHECK_EQ(Controls(def, "shape"), Names{"g3"});
  DOCTEST_CHECK_EQ(Controls(def, "axes"), Names{"g1"});
  DOCTEST_CHECK_EQ(Controls(def, "db1"), Names{"dw1"});
}

DOCTEST_TEST_CASE("AGradientThatIsConstantDoesNotStandForOthers") {
  testing::Graph graph = Chain();
  for (const char* name : {"zero", "also_zero"}) {
    graph.Add("Const", name);
    graph.Add("LibraAllReduce", std::string("r_") + name, {name});
  }
  const auto def = Order(graph, {{"dw3"}, {"zero"}, {"also_zero"}, {"dw2"}, {"dw1"}},
                         {"r3", "r_zero", "r_also_zero", "r2", "r1"});
  DOCTEST_CHECK_EQ(Controls(def, "dw2"), Names{"dw3"});
  DOCTEST_CHECK_EQ(Controls(def, "dx3"), Names{});
  DOCTEST_CHECK_EQ(Controls(def, "dx2"), Names{"dw3"});
}

DOCTEST_TEST_CASE("WhatIsMergedLaterIsOfOneLevel") {
  testing::Graph graph;
  graph.Add("Placeholder", "x");
  graph.Add("Neg", "g", {"x"});
  graph.Add("BiasAddGrad", "db", {"g"});
  graph.Add("Neg", "again", {"x"});
  graph.Add("Const", "shape");
  graph.Add("Conv2DBackpropFilter", "dw", {"again", "shape", "g"});
  graph.Add("LibraAllReduce", "rb", {"db"});
  graph.Add("LibraAllReduce", "rw", {"dw"});
  const auto def = Order(graph, {{"db"}, {"dw"}}, {"rb", "rw"});
  // One that waited for the bias' gradient, and led to the filter's, would wait for itself.
  for (const char* name : {"again", "dw", "db"}) DOCTEST_CHECK_EQ(Controls(def, name), Names{});

  graph.Add("Neg", "first", {"x"});
  graph.Add("LibraAllReduce", "r", {"first"});
  for (const char* second : {"dw", "db"}) {
    const auto behind =
        Order(graph, {{"first"}, {second}, {second[1] == 'w' ? "db" : "dw"}}, {"r", "rb", "rw"});
    for (const char* name : {"dw", "db"}) DOCTEST_CHECK_EQ(Controls(behind, name), Names{"first"});
  }
}

DOCTEST_TEST_CASE("ALoopIsHeldUpWhereItBegins") {
  testing::Graph graph;
  graph.Add("Placeholder", "x");
  graph.Add("Neg", "dw", {"x"});
  graph.Add("Neg", "dx", {"x"});
  graph.AddLoop("loop", "dx");
  graph.Add("LibraAllReduce", "r0", {"dw"});
  graph.Add("LibraAllReduce", "r1", {"loop/exit"});
  const auto def = Order(graph, {{"dw"}, {"loop/exit"}}, {"r0", "r1"});
  DOCTEST_CHECK_EQ(Controls(def, "loop/enter"), Names{"dw"});
  DOCTEST_CHECK_EQ(Controls(def, "loop/body"), Names{});
}

// Another gradient of the group needs the loop, and does not hold it up for itself.
DOCTEST_TEST_CASE("ALoopIsHeldUpForEachValueThatIsAGradient") {
  testing::Graph graph;
  graph.Add("Placeholder", "x");
  graph.Add("Neg", "first", {"x"});
  graph.AddLoop("loop", "x");
  graph.Add("Exit", "second_exit", {"loop/switch"});
  graph.Add("Neg", "second", {"x", "^loop/exit"});
  graph.Add("Neg", "third", {"x"});
  Names all_reduces;
  for (const char* name : {"first", "second", "third", "second_exit"}) {
    all_reduces.push_back(std::string("r_") + name);
    graph.Add("LibraAllReduce", all_reduces.back(), {name});
  }
  const auto def = Order(graph, {{"first"}, {"second", "third", "second_exit"}}, all_reduces);
  DOCTEST_CHECK_EQ(Controls(def, "loop/enter"), Names{"first"});
  // Also where it is of a later group: then nothing can wait for the second any more.
  const auto one_by_one =
      Order(graph, {{"first"}, {"second"}, {"third"}, {"second_exit"}}, all_reduces);
  DOCTEST_CHECK_EQ(Controls(one_by_one, "loop/enter"), Names{"first"});
}

DOCTEST_TEST_CASE("WhatALoopNeedsDoesNotWaitForWhatItPutsOut") {
  testing::Graph graph;
  graph.Add("Placeholder", "x");
  graph.Add("Neg", "start", {"x"});
  graph.AddLoop("loop", "start");
  graph.Add("Neg", "end", {"loop/exit"});
  graph.Add("LibraAllReduce", "r0", {"end"});
  graph.Add("LibraAllReduce", "r1", {"start"});
  const auto def = Order(graph, {{"end"}, {"start"}}, {"r0", "r1"});
  DOCTEST_CHECK_EQ(Controls(def, "start"), Names{});
}

DOCTEST_TEST_CASE("EdgesStayOnOneDevice") {
  testing::Graph graph = Chain();
  for (auto& node : *graph.def.mutable_node()) {
    node.set_device(node.name() == "dw2" ? "/device:GPU:0" : "/device:CPU:0");
  }
  const auto def = Order(graph, {{"dw3"}, {"dw2"}, {"dw1"}});
  DOCTEST_CHECK_EQ(Controls(def, "dw2"), Names{});
  DOCTEST_CHECK_EQ(Controls(def, "dx2"), Names{"dw3"});
  DOCTEST_CHECK_EQ(Controls(def, "dw1"), Names{});
}

DOCTEST_TEST_CASE("AnOrderAgainstTheGraphClosesNoCycle") {
  const auto def = Order(Chain(), {{"dw1"}, {"dw2"}, {"dw3"}});
  DOCTEST_CHECK_EQ(Controls(def, "dw2"), Names{"dw1"});
  DOCTEST_CHECK_EQ(Controls(def, "dw3"), Names{"dw2"});
  DOCTEST_CHECK_EQ(Controls(def, "dx3"), Names{});
}

}  // namespace
}  // namespace tf_libra
