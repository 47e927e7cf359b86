// What is said of a plan's graphs when TensorFlow is about to execute them.

#include <memory>
#include <string>
#include <vector>

#include "passes/libra_optimizer.h"
#include "passes/rewrite_report.h"
#include "passes/testing.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/public/session_options.h"

namespace tf_libra {
namespace {

REGISTER_OP("NoOp");  // of TensorFlow's, which are not linked, every graph has this
REGISTER_OP("LibraAllReduce").Attr("tensor_names: list(string)").Attr("N: int = 1");
REGISTER_OP("LibraAllReduceStart").Attr("tensor_names: list(string)");

constexpr char kWritten[] = "LibraAllReduceStart";
constexpr char kTraced[] = "LibraAllReduce";

struct Node {
  const char* op;
  std::string name;
};

// Lets a function with these nodes come by, called under a config that names `plan` if any.
void Execute(const std::string& plan, const std::string& function, const std::vector<Node>& nodes) {
  auto graph = std::make_unique<tensorflow::Graph>(tensorflow::OpRegistry::Global());
  for (const Node& node : nodes) {
    tensorflow::NodeDef def;
    def.set_op(node.op);
    def.set_name(node.name);
    if (std::string(node.op) != "NoOp") {
      tensorflow::AddNodeAttr("tensor_names", std::vector<std::string>{node.name}, &def);
    }
    if (std::string(node.op) == kTraced) tensorflow::AddNodeAttr("N", 1, &def);
    absl::Status status;
    graph->AddNode(def, &status);
    DOCTEST_CHECK_EQ(std::string(status.message()), "");
  }
  tensorflow::SessionOptions session;
  if (!plan.empty()) {
    auto* const rewrite = session.config.mutable_graph_options()->mutable_rewrite_options();
    auto* const optimizer = rewrite->add_custom_optimizers();
    optimizer->set_name(kOptimizerName);
    (*optimizer->mutable_parameter_map())["plan"].set_s(plan);
  }
  tensorflow::FunctionDef def;
  def.mutable_signature()->set_name(function);
  tensorflow::GraphOptimizationPassOptions options;
  options.session_options = &session;
  options.function_def = &def;
  options.graph = &graph;
  const absl::Status status = tensorflow::OptimizationPassRegistry::Global()->RunGrouping(
      tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, options);
  DOCTEST_CHECK_EQ(std::string(status.message()), "");
}

void Reported(const std::string& plan, const std::vector<std::string>& nodes) {
  GraphReport report;
  for (const std::string& node : nodes) {
    report.groups.emplace_back();
    report.groups.back().node = node;
  }
  RewriteReports::Global().Record(plan, "step", std::move(report));
}

Outcome OutcomeOf(const std::string& plan) {
  return RewriteReports::Global().Find(plan, "step").outcome;
}

DOCTEST_TEST_CASE("WhatWasWrittenIsInForceIfAllOfItIsThere") {
  Reported("whole", {"one", "other"});
  DOCTEST_CHECK(OutcomeOf("whole") == Outcome::kUnknown);
  Execute("whole", "step",
          {{kWritten, "one"}, {kWritten, "other"}, {kTraced, "c"}, {kTraced, "b"}});
  DOCTEST_CHECK(OutcomeOf("whole") == Outcome::kActive);
  DOCTEST_CHECK_EQ(RewriteReports::Global().Find("whole", "step").left,
                   (std::vector<std::string>{"b", "c"}));

  Reported("in part", {"one", "other"});
  Execute("in part", "step", {{kWritten, "one"}});
  DOCTEST_CHECK(OutcomeOf("in part") == Outcome::kLost);
}

DOCTEST_TEST_CASE("AGraphThatThePassHasNotSeenIsReported") {
  Execute("unseen", "step", {{kTraced, "a"}});
  const GraphReport report = RewriteReports::Global().Find("unseen", "step");
  DOCTEST_CHECK(report.outcome == Outcome::kLost);
  DOCTEST_CHECK_EQ(report.skipped.front().reason,
                   testing::Contains("Grappler has not handed this graph to the pass"));
}

DOCTEST_TEST_CASE("WhatHasNoAllReduceOrNoPlanIsNobodysBusiness") {
  Execute("nothing", "step", {{"NoOp", "a"}});
  Execute("nothing", "step", {});
  Execute("", "step", {{kWritten, "a"}});
  for (const char* plan : {"nothing", ""}) {
    DOCTEST_CHECK_EQ(RewriteReports::Global().Find(plan, "step").serial, 0);
  }
}

}  // namespace
}  // namespace tf_libra
