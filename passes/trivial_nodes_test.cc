#include "passes/trivial_nodes.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "passes/indexed_graph.h"
#include "passes/testing.h"
#include "tensorflow/core/framework/op.h"

namespace tf_libra {
namespace {

// A stateless op: those of TensorFlow are not registered in this program.
REGISTER_OP("ArithmeticForTest").Input("a: int32").Input("b: int32").Output("c: int32");

std::set<std::string> Trivial(const testing::Graph& graph) {
  std::string reason;
  const std::optional<IndexedGraph> indexed = IndexGraph(graph.def, &reason);
  DOCTEST_CHECK_EQ(reason, std::string());
  const std::vector<bool> found = FindTrivialNodes(*indexed);
  std::set<std::string> names;
  for (int i = 0; i < graph.def.node_size(); ++i) {
    if (found[i]) names.insert(graph.def.node(i).name());
  }
  return names;
}

DOCTEST_TEST_CASE("ConstantsShapesAndWhatFollowsFromThemAreTrivial") {
  testing::Graph graph;
  graph.Add("Placeholder", "x");
  graph.Add("Neg", "computed", {"x"});
  graph.Add("Const", "axis", {"^computed"});
  graph.Add("Shape", "shape", {"computed"});
  graph.Add("ArithmeticForTest", "size", {"shape", "axis"});
  graph.Add("Reshape", "reshaped", {"computed", "shape"});
  const std::set<std::string> expected = {"x", "axis", "shape", "size"};
  DOCTEST_CHECK_EQ(Trivial(graph), expected);
}

DOCTEST_TEST_CASE("ForwardedArgumentsAreTrivialAndComputationsOnThemAreNot") {
  testing::Graph graph;
  graph.Add("Placeholder", "x");
  graph.Add("Identity", "same", {"x"});
  graph.Add("Neg", "computed", {"same"});
  graph.Add("Identity", "result", {"computed"});
  DOCTEST_CHECK_EQ(Trivial(graph), (std::set<std::string>{"x", "same"}));
}

DOCTEST_TEST_CASE("ControlFlowIsNotTrivial") {
  testing::Graph graph;
  graph.Add("Const", "x");
  graph.AddLoop("loop", "x");
  DOCTEST_CHECK_EQ(Trivial(graph), (std::set<std::string>{"x"}));
}

}  // namespace
}  // namespace tf_libra
