#include "passes/post_grappler_fusions.h"

#include <optional>
#include <string>
#include <vector>

#include "passes/indexed_graph.h"
#include "passes/testing.h"

namespace tf_libra {
namespace {

// A convolution's gradients of bias and filter, from "g"; `activation` may be any node.
testing::Graph Convolution(const std::string& activation) {
  testing::Graph graph;
  graph.Add("Placeholder", "x");
  graph.Add("Neg", "g", {"x"});
  graph.Add("BiasAddGrad", "bias", {"g"});
  graph.Add("Neg", "of_bias", {"bias"});
  graph.Add("Const", "shape");
  graph.Add("Conv2DBackpropFilter", "filter", {activation, "shape", "g"});
  return graph;
}

IndexedGraph Index(const testing::Graph& graph) {
  std::string why;
  const std::optional<IndexedGraph> indexed = IndexGraph(graph.def, &why);
  DOCTEST_CHECK_EQ(why, std::string());
  return *indexed;
}

std::vector<std::string> Fanins(const IndexedGraph& graph, const std::string& name) {
  std::vector<std::string> names;
  for (const Fanin& fanin : graph.fanins[graph.index.at(name)]) {
    const std::string prefix = fanin.port == kPostFusion ? "merged:" : "";
    names.push_back(prefix + graph.def->node(fanin.node).name());
  }
  return names;
}

DOCTEST_TEST_CASE("EachWaitsForWhatTheOtherReads") {
  const testing::Graph graph = Convolution("x");
  const IndexedGraph indexed = Index(graph);
  DOCTEST_CHECK_EQ(indexed.post_fusion_pairs.size(), 1u);
  DOCTEST_CHECK_EQ(Fanins(indexed, "bias"),
                   (std::vector<std::string>{"g", "merged:x", "merged:shape", "merged:g"}));
  DOCTEST_CHECK_EQ(Fanins(indexed, "filter"),
                   (std::vector<std::string>{"x", "shape", "g", "merged:g"}));
  DOCTEST_CHECK_EQ(indexed.order.size(), 6u);
}

DOCTEST_TEST_CASE("WhatDependsOnEachOtherIsNotMerged") {
  const testing::Graph graph = Convolution("of_bias");
  const IndexedGraph indexed = Index(graph);
  DOCTEST_CHECK(indexed.post_fusion_pairs.empty());
  DOCTEST_CHECK_EQ(Fanins(indexed, "bias"), std::vector<std::string>{"g"});
}

// Of two biases one leads to the filter: the other may still be merged with it.
DOCTEST_TEST_CASE("EachPairIsLookedAtByItself") {
  testing::Graph graph = Convolution("of_bias");
  graph.Add("BiasAddGrad", "another", {"g"});
  const IndexedGraph indexed = Index(graph);
  DOCTEST_CHECK_EQ(indexed.post_fusion_pairs.size(), 1u);
  DOCTEST_CHECK_EQ(Fanins(indexed, "bias"), std::vector<std::string>{"g"});
  DOCTEST_CHECK_EQ(Fanins(indexed, "another"),
                   (std::vector<std::string>{"g", "merged:of_bias", "merged:shape", "merged:g"}));
}

// Four that read the same gradient; each becomes one op with one other, whichever that is.
DOCTEST_TEST_CASE("WhatOneIsMergedWithIsNotMergedWithTheOther") {
  testing::Graph graph;
  graph.Add("Placeholder", "x");
  graph.Add("Placeholder", "y");
  graph.Add("Const", "shape");
  graph.Add("Neg", "g", {"x"});
  graph.Add("BiasAddGrad", "bias1", {"g"});
  graph.Add("BiasAddGrad", "bias2", {"g"});
  graph.Add("Conv2DBackpropFilter", "filter1", {"bias2", "shape", "g"});
  graph.Add("Conv2DBackpropFilter", "filter2", {"y", "shape", "g"});
  // All but that of a bias and the filter that reads it.
  DOCTEST_CHECK_EQ(Index(graph).post_fusion_pairs.size(), 3u);
}

// Two pairs that could be merged one by one, but not both: whichever is, the other then waits for
// itself.
DOCTEST_TEST_CASE("WhatAnotherPairForbidsIsNotMerged") {
  testing::Graph graph;
  graph.Add("Placeholder", "x");
  graph.Add("Const", "shape");
  graph.Add("Neg", "g1", {"x"});
  graph.Add("Neg", "g2", {"x"});
  graph.Add("BiasAddGrad", "bias1", {"g1"});
  graph.Add("BiasAddGrad", "bias2", {"g2"});
  graph.Add("Conv2DBackpropFilter", "filter1", {"bias2", "shape", "g1"});
  graph.Add("Conv2DBackpropFilter", "filter2", {"bias1", "shape", "g2"});
  DOCTEST_CHECK_EQ(Index(graph).post_fusion_pairs.size(), 1u);
  DOCTEST_CHECK_EQ(Index(graph).order.size(), 8u);
}

DOCTEST_TEST_CASE("AnotherGradientOrContextIsNoPair") {
  testing::Graph graph;
  graph.Add("Placeholder", "x");
  graph.Add("Placeholder", "if");
  graph.Add("Switch", "switch", {"x", "if"});
  graph.Add("Const", "shape");
  graph.Add("BiasAddGrad", "bias", {"switch:1"});
  graph.Add("Conv2DBackpropFilter", "other", {"x", "shape", "switch"});
  graph.Add("Switch", "nested", {"x", "switch"});
  graph.Add("Conv2DBackpropFilter", "inside", {"nested", "shape", "switch:1"});
  DOCTEST_CHECK(Index(graph).post_fusion_pairs.empty());
}

}  // namespace
}  // namespace tf_libra
