#include "passes/derivations.h"

#include <string>
#include <vector>

#include "passes/momentum_step.h"
#include "passes/testing.h"
#include "passes/update_sharding.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_libra {
namespace {

using testing::ByName;
using testing::Graph;
using testing::Inputs;
using testing::InputsOf;
using testing::MomentumStep;

// Two tensors, each updated by its norm and another factor.
struct NormStep {
  Graph graph;
  GraphReport report;

  // Adds the tensors in the order of `names`. `extra` makes one rank's graph another.
  explicit NormStep(const Inputs& names, const Inputs& extra = {}) {
    tensorflow::NodeDef* const reduce = graph.Reduce("reduce", "gradient", "a");
    reduce->add_input("gradient");
    tensorflow::AddNodeAttr("plan", "p", reduce);
    (*reduce->mutable_attr())["tensor_names"].mutable_list()->add_s("b");
    for (const std::string& name : names) {
      const std::string gradient = name == "a" ? "reduce" : "reduce:1";
      // Ranks may number arguments otherwise.
      const int index = name == names[0] ? 3 : 5;
      tensorflow::AddNodeAttr("index", index, graph.Add("_Arg", name));
      graph.AddFloat("L2Loss", "norm_" + name, {gradient});
      graph.AddFloat("Mul", "scaled_" + name, {gradient, "norm_" + name});
      graph.AddFloat("AssignSubVariableOp", "assign_" + name, {name, "scaled_" + name});
    }
    graph.Add("Placeholder", "one_factor");
    graph.Add("Placeholder", "another_factor");
    for (const std::string& factor : extra) {
      graph.AddFloat("Mul", "by_" + factor, {"reduce", factor});
      graph.AddFloat("L2Loss", "norm_by_" + factor, {"by_" + factor});
    }
    ReportedGroup group;
    group.node = "reduce";
    group.tensors = {{"a", "gradient", 0}, {"b", "gradient", 0}};
    report.groups = {group};
    ShardUpdates({{{"a", 100}, {"b", 100}}, {}}, {}, {}, &report, &graph.def);
  }

  std::string NameOfSums() const {
    return ByName(graph.def).at("reduce_sums").attr().at("name_of_all").s();
  }
};

DOCTEST_TEST_CASE("RanksExchangeInOneOrder") {
  const NormStep one({"a", "b"}), other({"b", "a"});
  DOCTEST_CHECK_EQ(one.report.exchanged.size(), 4);
  DOCTEST_CHECK((one.report.exchanged == other.report.exchanged));
  DOCTEST_CHECK_EQ(one.NameOfSums(), other.NameOfSums());
  for (const NormStep* step : {&one, &other}) {
    const auto nodes = ByName(step->graph.def);
    DOCTEST_CHECK_EQ(InputsOf(nodes.at("reduce_sums")),
                     (Inputs{"norm_a_partial", "norm_b_partial", "^reduce"}));
    const Inputs gathered = InputsOf(nodes.at("reduce_gather"));
    DOCTEST_CHECK((gathered[0] == "a" && gathered[1] == "b"));
  }
}

DOCTEST_TEST_CASE("RanksTellOtherSumsApart") {
  const NormStep one({"a", "b"}), other({"a", "b"}, {"one_factor"});
  DOCTEST_CHECK(other.report.groups[0].is_sharded);
  DOCTEST_CHECK(one.NameOfSums() != other.NameOfSums());
}

DOCTEST_TEST_CASE("SumsThatAreAlikeKeepTheUpdateWhole") {
  const NormStep step({"a", "b"}, {"one_factor", "another_factor"});
  DOCTEST_CHECK_EQ(step.report.groups[0].whole,
                   "'norm_by_one_factor' and 'norm_by_another_factor' sum alike, so that ranks "
                   "cannot tell them apart");
  // Equal sums may be exchanged in any order.
  DOCTEST_CHECK(NormStep({"a", "b"}, {"one_factor"}).report.groups[0].is_sharded);
}

// Momentum whose branches clip the gradient by the same norm.
DOCTEST_TEST_CASE("SumsOfBothBranchesHaveTheSameOrderOnAllRanks") {
  std::vector<std::vector<std::string>> exchanged;
  for (const bool else_is_first : {false, true}) {
    MomentumStep step;
    step.graph.Add("Placeholder", "condition");
    step.graph.AddFloat("Switch", "branch", {"reduce", "condition"});
    for (const bool is_else : {else_is_first, !else_is_first}) {
      const std::string own = is_else ? "branch:0" : "branch:1";
      const std::string name = is_else ? "else" : "then";
      step.graph.AddFloat("L2Loss", name + "_norm", {own});
      step.graph.AddFloat("Mul", name + "_clipped", {own, name + "_norm"});
    }
    tensorflow::AddNodeAttr(
        "N", 2, step.graph.AddFloat("Merge", "clipped", {"else_clipped", "then_clipped"}));
    for (auto& node : *step.graph.def.mutable_node()) {
      if (node.name() == "new") node.set_input(1, "clipped");
    }
    DOCTEST_CHECK(step.Shard());
    DOCTEST_CHECK_EQ(step.report.groups[0].whole, "");
    exchanged.push_back(step.report.exchanged);
    const auto nodes = ByName(step.graph.def);
    // Which of them is first depends on their names alone.
    const Inputs sums = InputsOf(nodes.at("reduce_sums"));
    const std::string first = nodes.at(sums[0]).input(0);
    exchanged.back().push_back(first);
  }
  DOCTEST_CHECK((exchanged[0] == exchanged[1]));
  DOCTEST_CHECK(exchanged[0][0] != exchanged[0][1]);
}

}  // namespace
}  // namespace tf_libra
