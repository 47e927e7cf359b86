#include "passes/rewrite_report.h"

#include <string>
#include <utility>
#include <vector>

#include "passes/testing.h"

namespace tf_libra {
namespace {

GraphReport TwoGroups() {
  GraphReport report;
  for (const char* node : {"first", "second"}) {
    ReportedGroup group;
    group.node = node;
    group.tensors = {{"a", "", 0}};
    report.groups.push_back(group);
  }
  return report;
}

Outcome OutcomeWith(std::vector<std::string> executed) {
  RewriteReports reports;
  reports.Record("plan", "graph", TwoGroups());
  reports.Confirm("plan", "graph", {{executed.begin(), executed.end()}, {}});
  return reports.Find("plan", "graph").outcome;
}

void InForceIsWhatIsExecutedAsAWhole() {
  EXPECT_THAT_TRUE(OutcomeWith({"first", "second"}) == Outcome::kInForce);
  EXPECT_THAT_TRUE(OutcomeWith({"first", "second", "third"}) == Outcome::kInForce);
  EXPECT_THAT_TRUE(OutcomeWith({"first"}) == Outcome::kLost);
  EXPECT_THAT_TRUE(OutcomeWith({}) == Outcome::kLost);
}

void NothingIsKnownBeforeAndAfterTheNextRewriting() {
  RewriteReports reports;
  reports.Record("plan", "graph", TwoGroups());
  EXPECT_THAT_TRUE(reports.Find("plan", "graph").outcome == Outcome::kUnknown);
  reports.Confirm("plan", "graph", {{"first", "second"}, {}});
  reports.Record("plan", "graph", TwoGroups());
  EXPECT_THAT_TRUE(reports.Find("plan", "graph").outcome == Outcome::kUnknown);
}

void AGraphThatThePassHasNotSeenIsNotInForce() {
  RewriteReports reports;
  reports.Confirm("plan", "graph", {{}, {"a", "b"}});
  const GraphReport report = reports.Find("plan", "graph");
  EXPECT_THAT_TRUE(report.outcome == Outcome::kLost);
  EXPECT_SAME(report.left.size(), 2u);
  EXPECT_SAME(report.skipped.size(), 1u);
}

void TheLatestGraphHasTheLargestSerial() {
  RewriteReports reports;
  reports.Record("plan", "one", TwoGroups());
  reports.Record("plan", "two", TwoGroups());
  EXPECT_THAT_TRUE(reports.Find("plan", "one").serial < reports.Find("plan", "two").serial);
  reports.Confirm("plan", "one", {{"first", "second"}, {}});
  EXPECT_THAT_TRUE(reports.Find("plan", "one").serial > reports.Find("plan", "two").serial);
}

void ProducersFollowTheGraph() {
  testing::Graph builder;
  builder.Add("Split", "split");
  builder.Add("LibraAllReduce", "first", {"split:1", "^split", "^other"});
  GraphReport report = TwoGroups();
  RefreshGroups(builder.def, &report.groups);
  EXPECT_SAME(report.groups[0].tensors[0].producer, "split");
  EXPECT_SAME(report.groups[0].tensors[0].port, 1);
  EXPECT_SAME(report.groups[0].control_inputs.size(), 2u);
  EXPECT_SAME(report.groups[1].tensors[0].producer, "");  // its node is gone
}

void JsonSaysNullTrueAndFalse() {
  RewriteReports reports;
  reports.Record("plan", "graph", TwoGroups());
  EXPECT_CONTAINS(reports.ToJson("plan"), "\"in_force\": null");
  reports.Confirm("plan", "graph", {{"first", "second"}, {"le\"ft"}});
  EXPECT_CONTAINS(reports.ToJson("plan"), "\"in_force\": true");
  EXPECT_CONTAINS(reports.ToJson("plan"), "\"left\": [\"le\\\"ft\"]");
  reports.Confirm("plan", "graph", {{"first"}, {}});
  EXPECT_CONTAINS(reports.ToJson("plan"), "\"in_force\": false");
  reports.Erase("plan");
  EXPECT_CONTAINS(reports.ToJson("plan"), "\"graphs\": []");
}

}  // namespace
}  // namespace tf_libra

int main() {
  using namespace tf_libra;
  return testing::RunTests(
      {{"InForceIsWhatIsExecutedAsAWhole", InForceIsWhatIsExecutedAsAWhole},
       {"NothingIsKnownBeforeAndAfterTheNextRewriting",
        NothingIsKnownBeforeAndAfterTheNextRewriting},
       {"AGraphThatThePassHasNotSeenIsNotInForce", AGraphThatThePassHasNotSeenIsNotInForce},
       {"TheLatestGraphHasTheLargestSerial", TheLatestGraphHasTheLargestSerial},
       {"ProducersFollowTheGraph", ProducersFollowTheGraph},
       {"JsonSaysNullTrueAndFalse", JsonSaysNullTrueAndFalse}});
}
