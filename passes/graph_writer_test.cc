#include "passes/graph_writer.h"

#include <optional>
#include <string>

#include "passes/testing.h"

namespace tf_libra {
namespace {

using testing::Graph;
using testing::kGpu;

// `a` and `b` as one node on the GPU, though they were traced without a device.
struct Case {
  Graph builder;
  NodesToKeep keep;

  WrittenGraph Write() {
    builder.Reduce("a", "grad_a");
    builder.Reduce("b", "grad_b", "", {"^a"});
    builder.Add("Identity", "y", {"b", "^a"});
    std::string reason;
    const std::optional<IndexedGraph> graph = IndexGraph(builder.def, &reason);
    const Kind kind{tensorflow::DT_FLOAT, kGpu, "average", ""};
    const PlannedAllReduce a{graph->index.at("a"), "a", 0, 0, kind};
    const PlannedAllReduce b{graph->index.at("b"), "b", 0, 1, kind};
    const RegisteredPlan plan{"plan", "digest", {{{"a", "b"}, 3, 0}}, false};
    Decisions decisions;
    decisions.fusions.push_back({0, 0, "fused", {&a, &b}, {"before"}});
    decisions.dropped = [&](const Fanin& from, int to) { return from.port < 0 && to == b.node; };
    decisions.waits[graph->index.at("y")] = {"other", "fused"};
    return WriteGraph(*graph, plan, *MakeRewriter("LibraAllReduce", &reason), keep, decisions);
  }
};

std::string Line(const WrittenGraph& written, const std::string& name) {
  for (const auto& node : written.def.node()) {
    if (node.name() != name) continue;
    std::string text = node.op() + " " + node.device();
    for (const std::string& input : node.input()) text += " " + input;
    return text;
  }
  return "";
}

DOCTEST_TEST_CASE("EdgesFollow") {
  Case one;
  const WrittenGraph written = one.Write();
  DOCTEST_CHECK_EQ(Line(written, "fused"),
                   std::string("LibraAllReduce ") + kGpu + " grad_a grad_b ^before");
  DOCTEST_CHECK_EQ(Line(written, "y"), "Identity  fused:1 ^fused ^other");
  DOCTEST_CHECK_EQ(Line(written, "a"), "");
  DOCTEST_CHECK_EQ(written.groups.size(), 1u);
  DOCTEST_CHECK_EQ(written.groups[0].num_threads, 3);
  DOCTEST_CHECK_EQ(written.groups[0].tensors[1].producer, "grad_b");
}

DOCTEST_TEST_CASE("WhatIsFetchedIsCopiedOnTheDeviceOfTheFusedOp") {
  Case one;
  one.keep.fetched = {"b"};
  DOCTEST_CHECK_EQ(Line(one.Write(), "b"), std::string("Identity ") + kGpu + " fused:1");
}

DOCTEST_TEST_CASE("ATargetIsNotCopied") {
  Case one;
  one.keep.targets = {"a", "b"};
  const WrittenGraph written = one.Write();
  DOCTEST_CHECK_EQ(Line(written, "a"), std::string("NoOp ") + kGpu + " ^fused");
  DOCTEST_CHECK_EQ(Line(written, "b"), std::string("NoOp ") + kGpu + " ^fused");
}

}  // namespace
}  // namespace tf_libra
