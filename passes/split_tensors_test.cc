// What becomes of an all-reduce whose tensor is cut, and of what was around it.

#include "passes/split_tensors.h"

#include <string>
#include <vector>

#include "passes/indexed_graph.h"
#include "passes/libra_rewrite.h"
#include "passes/pending_all_reduces.h"
#include "passes/testing.h"

namespace tf_libra {
namespace {

using testing::ByName;
using testing::Inputs;
using testing::InputsOf;

// "a" in three parts, the last of them with "b".
RegisteredPlan ThreeParts() {
  RegisteredPlan plan{"plan", "digest", {}, false};
  plan.groups.push_back({{"a"}, 1, 0, {0}});
  plan.groups.push_back({{"a"}, 2, 1, {8}});
  plan.groups.push_back({{"a", "b"}, 1, 0, {20, kWholeTensor}});
  return plan;
}

testing::Graph TwoTensors() {
  testing::Graph builder;
  builder.Add("NoOp", "branch");
  tensorflow::NodeDef* traced = builder.Reduce("a", "grad_a", "", {"^branch"});
  tensorflow::AddNodeAttr("part_starts", std::vector<int64_t>{}, traced);  // the op's default
  builder.Reduce("b", "grad_b", "", {"^a"});
  builder.Add("Identity", "update_a", {"a"});
  builder.Add("NoOp", "after_a", {"^a"});
  return builder;
}

DOCTEST_TEST_CASE("WhoReadsTheTensorReadsTheJoin") {
  testing::Graph builder = TwoTensors();
  CutTensors(ThreeParts(), {}, &builder.def);
  const auto nodes = ByName(builder.def);
  DOCTEST_CHECK_EQ(nodes.at("a").op(), "LibraJoin");
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("a")), (Inputs{"a_cut", "a_part_0", "a_part_1", "a_part_2"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("a_cut")), (Inputs{"grad_a", "^branch"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("a_part_2")), (Inputs{"a_cut:3", "^branch"}));
  DOCTEST_CHECK_EQ(PartStart(nodes.at("a_part_2")), 20);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("update_a")), (Inputs{"a"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("after_a")), (Inputs{"^a"}));
  // It starts behind them, and does not wait for their end.
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("b")),
                   (Inputs{"grad_b", "^a_part_0", "^a_part_1", "^a_part_2"}));
}

DOCTEST_TEST_CASE("WhatIsFedIsLeftAlone") {
  testing::Graph builder = TwoTensors();
  CutTensors(ThreeParts(), {"a"}, &builder.def);
  DOCTEST_CHECK_EQ(ByName(builder.def).at("a").op(), "LibraAllReduce");
}

DOCTEST_TEST_CASE("NamesAreNotTakenTwice") {
  testing::Graph builder = TwoTensors();
  builder.Add("NoOp", "a_cut");
  builder.Add("NoOp", "a_part_1");
  CutTensors(ThreeParts(), {}, &builder.def);
  const auto nodes = ByName(builder.def);
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("a")),
                   (Inputs{"a_cut_1", "a_part_0", "a_part_1_1", "a_part_2"}));
}

DOCTEST_TEST_CASE("PartsAreFusedLikeTensors") {
  std::string reason;
  const auto rewriter = MakeRewriter("LibraAllReduce", &reason);
  tensorflow::GraphDef written;
  GraphReport report;
  const tensorflow::GraphDef graph = TwoTensors().def;
  DOCTEST_CHECK(FuseGroups(ThreeParts(), *rewriter, {}, graph, &written, &report));
  DOCTEST_CHECK_EQ(report.skipped.size(), 0u);
  DOCTEST_CHECK(IsLive(written, &reason));
  const auto nodes = ByName(written);
  const std::string group = "tf_libra/plan/group_";
  DOCTEST_CHECK_EQ(InputsOf(nodes.at("a")),
                   (Inputs{"a_cut", group + "0", group + "1", group + "2"}));
  DOCTEST_CHECK_EQ(InputsOf(nodes.at(group + "2")),
                   (Inputs{"a_cut:3", "grad_b", "^branch", "^" + group + "1"}));
  const auto& starts = nodes.at(group + "2").attr().at("part_starts").list();
  DOCTEST_CHECK_EQ(starts.i(0), 20);
  DOCTEST_CHECK_EQ(starts.i(1), kWholeTensor);
  tensorflow::GraphDef again;
  DOCTEST_CHECK(!FuseGroups(ThreeParts(), *rewriter, {}, written, &again, &report));
}

// Whose op knows no parts.
class WholeTensors : public Rewriter {
 public:
  void Write(const FusedGroup&, tensorflow::NodeDef*) const override {}
};

DOCTEST_TEST_CASE("OnlyWhereTheOpKnowsParts") {
  std::string reason;
  DOCTEST_CHECK(CutsTensors(ThreeParts(), *MakeRewriter("LibraAllReduce", &reason)));
  DOCTEST_CHECK(!CutsTensors(ThreeParts(), WholeTensors()));
  RegisteredPlan whole{"plan", "digest", {{{"a", "b"}, 1, 0, {kWholeTensor, kWholeTensor}}}, false};
  DOCTEST_CHECK(!CutsTensors(whole, *MakeRewriter("LibraAllReduce", &reason)));
}

}  // namespace
}  // namespace tf_libra
