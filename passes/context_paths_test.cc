// Edges are added as OrderAllReduces adds them: for each all-reduce, from the one before it back to
// the first.

#include "passes/context_paths.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "passes/testing.h"

namespace tf_libra {
namespace {

using testing::Graph;

// A conditional that all-reduces in one branch; returns its Merge.
std::string AddConditional(Graph* builder, const std::string& name, const std::string& source) {
  builder->Add("Const", name + "/if");
  builder->Add("Switch", name + "/switch", {source, name + "/if"});
  builder->Add("Identity", name + "/then", {name + "/switch:1"});
  builder->Add("Identity", name + "/else", {name + "/switch"});
  builder->Reduce(name, name + "/then");
  builder->Add("Merge", name + "/merge", {name + "/else", name});
  return name + "/merge";
}

// A loop that all-reduces in its body; returns its Exit.
std::string AddLoop(Graph* builder, const std::string& name, const std::string& source) {
  builder->AddLoop(name + "_loop", source);
  builder->Reduce(name, name + "_loop/body");
  for (auto& node : *builder->def.mutable_node()) {
    if (node.name() == name + "_loop/next") node.set_input(0, name);
  }
  return name + "_loop/exit";
}

struct Ordered {
  std::set<std::pair<std::string, std::string>> edges;
  int num_pairs = 0;
  int num_ordered = 0;  // pairs that needed no edge
  int num_nodes = 0;
  int64_t num_visited = 0;
};

Ordered OrderAll(const Graph& builder) {
  std::string reason;
  const std::optional<IndexedGraph> graph = IndexGraph(builder.def, &reason);
  DOCTEST_REQUIRE_MESSAGE(graph, reason);
  const DroppedEdge dropped = [](const Fanin&, int) { return false; };
  ContractedDag dag = PathsBetween(*graph, std::vector<bool>(graph->fanins.size(), true), dropped);
  const std::vector<int> order = dag.OrderOf(FindAllReduces(*graph));
  const std::vector<std::vector<int>> fused;
  ContextPaths paths(*graph, dropped, dag, fused, order);
  Ordered found;
  found.num_nodes = builder.def.node_size();
  for (size_t later = 0; later < order.size(); ++later) {
    for (size_t earlier = later; earlier-- > 0;) {
      const std::optional<OrderingEdge> edge = paths.Find(earlier, later);
      DOCTEST_REQUIRE(edge);
      ++found.num_pairs;
      if (edge->to == OrderingEdge::kNone) {
        ++found.num_ordered;
        continue;
      }
      found.edges.emplace(builder.def.node(edge->from).name(), builder.def.node(edge->to).name());
      dag.AddEdge(edge->from, edge->to);
      paths.Add(edge->from, edge->to);
    }
  }
  found.num_visited = paths.num_visited();
  return found;
}

using Edges = std::set<std::pair<std::string, std::string>>;

DOCTEST_TEST_CASE("TheEndOfABranchComesBeforeTheSwitchOfTheNext") {
  Graph builder;
  builder.Add("Const", "x");
  for (const char* name : {"a", "b", "c"}) AddConditional(&builder, name, "x");
  DOCTEST_CHECK(OrderAll(builder).edges ==
                Edges{{"a/merge", "b/switch"}, {"b/merge", "c/switch"}, {"a/merge", "c/switch"}});
}

DOCTEST_TEST_CASE("WhatIsWaitedForAnywayNeedsNoEdge") {
  Graph builder;
  builder.Add("Const", "x");
  AddConditional(&builder, "b", AddConditional(&builder, "a", "x"));
  const Ordered found = OrderAll(builder);
  DOCTEST_CHECK(found.edges.empty());
  DOCTEST_CHECK(found.num_ordered == 1);
}

DOCTEST_TEST_CASE("AnEdgeIsSeenByThePairsBehindIt") {
  Graph builder;
  builder.Add("Const", "x");
  AddConditional(&builder, "a", "x");
  AddConditional(&builder, "b", "x");
  // Waits for the Switch of `b`, which waits for the end of `a` only by an edge that is added.
  builder.Add("Identity", "y", {"b/if"});
  builder.def.mutable_node(builder.def.node_size() - 1)->add_input("^b/switch");
  AddConditional(&builder, "c", "y");
  const Ordered found = OrderAll(builder);
  DOCTEST_CHECK(found.edges == Edges{{"a/merge", "b/switch"}, {"b/merge", "c/switch"}});
  DOCTEST_CHECK(found.num_ordered == 1);
}

DOCTEST_TEST_CASE("WorkForAPairDoesNotDependOnTheSizeOfTheGraph") {
  constexpr int kNumAllReduces = 100;
  constexpr int kLength = 40;  // nodes before each conditional or loop
  for (const bool is_loop : {false, true}) {
    for (const bool is_chain : {false, true}) {
      Graph builder;
      std::string source = "x";
      builder.Add("Const", source);
      for (int i = 0; i < kNumAllReduces; ++i) {
        const std::string name = "n" + std::to_string(i);
        builder.Add("Identity", name + "/from", {source});
        std::string input = name + "/from";
        for (int j = 0; j < kLength; ++j) {
          const std::string next = name + "/" + std::to_string(j);
          builder.Add("Identity", next, {input});
          input = next;
        }
        const std::string end =
            (is_loop ? AddLoop : AddConditional)(&builder, "r" + std::to_string(i), input);
        if (is_chain) source = end;
      }
      const Ordered found = OrderAll(builder);
      DOCTEST_CHECK(found.num_pairs == kNumAllReduces * (kNumAllReduces - 1) / 2);
      DOCTEST_CHECK_MESSAGE(found.num_visited < 5 * found.num_pairs + 3 * found.num_nodes,
                            found.num_visited, " for ", found.num_pairs, " pairs and ",
                            found.num_nodes, " nodes");
    }
  }
}

}  // namespace
}  // namespace tf_libra
