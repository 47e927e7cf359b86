#include "passes/control_edges.h"

#include <map>
#include <optional>
#include <string>

#include "passes/indexed_graph.h"
#include "passes/testing.h"

namespace tf_libra {
namespace {

using testing::Inputs;

// a feeds b; c, d and e are independent.
testing::Graph SmallGraph() {
  testing::Graph graph;
  graph.Add("Const", "a");
  graph.Add("Neg", "b", {"a"});
  for (const char* name : {"c", "d", "e"}) graph.Add("Const", name);
  return graph;
}

std::map<std::string, tensorflow::NodeDef> Written(const testing::Graph& graph,
                                                   const std::vector<ControlEdge>& edges) {
  std::string reason;
  const std::optional<IndexedGraph> indexed = IndexGraph(graph.def, &reason);
  DOCTEST_CHECK_EQ(reason, std::string());
  DOCTEST_CHECK(!CloseCycle(edges, *indexed));
  tensorflow::GraphDef def = graph.def;
  WriteControlEdges(edges, *indexed, "join_", &def);
  DOCTEST_CHECK(IsLive(def, &reason));
  return testing::ByName(def);
}

DOCTEST_TEST_CASE("EdgesBecomeControlInputs") {
  const auto nodes = Written(SmallGraph(), {{{2, 3}, {1}}, {{2}, {4}}});
  DOCTEST_CHECK_EQ(testing::InputsOf(nodes.at("b")), (Inputs{"a", "^c", "^d"}));
  DOCTEST_CHECK_EQ(testing::InputsOf(nodes.at("e")), Inputs{"^c"});
  DOCTEST_CHECK_EQ(nodes.size(), size_t{5});
}

DOCTEST_TEST_CASE("RepeatedEdgesAreWrittenOnce") {
  testing::Graph graph = SmallGraph();
  *graph.def.mutable_node(1)->add_input() = "^c";
  const auto nodes = Written(graph, {{{2}, {1}}, {{2, 3}, {1}}});
  DOCTEST_CHECK_EQ(testing::InputsOf(nodes.at("b")), (Inputs{"a", "^c", "^d"}));
}

DOCTEST_TEST_CASE("ManyEdgesPassThroughANoOpWithAnUnusedName") {
  testing::Graph graph = SmallGraph();
  graph.Add("Const", "join_0");
  for (const char* name : {"f", "g"}) graph.Add("Const", name);
  const auto nodes = Written(graph, {{{2, 3, 4}, {1, 6, 7}}});
  DOCTEST_CHECK_EQ(nodes.at("join_1").op(), std::string("NoOp"));
  DOCTEST_CHECK_EQ(testing::InputsOf(nodes.at("join_1")), (Inputs{"^c", "^d", "^e"}));
  for (const char* name : {"f", "g"}) {
    DOCTEST_CHECK_EQ(testing::InputsOf(nodes.at(name)), Inputs{"^join_1"});
  }
}

DOCTEST_TEST_CASE("ACycleIsFoundThroughTheGraphAndThroughEdges") {
  const testing::Graph graph = SmallGraph();
  std::string reason;
  const std::optional<IndexedGraph> indexed = IndexGraph(graph.def, &reason);
  DOCTEST_CHECK(CloseCycle({{{1}, {0}}}, *indexed));
  DOCTEST_CHECK(CloseCycle({{{2}, {3}}, {{3}, {4}}, {{4}, {2}}}, *indexed));
  DOCTEST_CHECK(!CloseCycle({{{0}, {1}}, {{2}, {3}}, {{3}, {4}}}, *indexed));
}

}  // namespace
}  // namespace tf_libra
