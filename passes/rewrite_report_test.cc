#include "passes/rewrite_report.h"

#include <string>
#include <utility>
#include <vector>

#include "passes/testing.h"

namespace tf_libra {
namespace {

GraphReport TwoGroupReport() {
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
  reports.Record("plan", "graph", TwoGroupReport());
  reports.Confirm("plan", "graph", {{executed.begin(), executed.end()}, {}});
  return reports.Find("plan", "graph").outcome;
}

DOCTEST_TEST_CASE("InForceIsWhatIsExecutedAsAWhole") {
  DOCTEST_CHECK(OutcomeWith({"first", "second"}) == Outcome::kActive);
  DOCTEST_CHECK(OutcomeWith({"first", "second", "third"}) == Outcome::kActive);
  DOCTEST_CHECK(OutcomeWith({"first"}) == Outcome::kLost);
  DOCTEST_CHECK(OutcomeWith({}) == Outcome::kLost);
}

DOCTEST_TEST_CASE("NothingIsKnownBeforeAndAfterTheNextRewriting") {
  RewriteReports reports;
  reports.Record("plan", "graph", TwoGroupReport());
  DOCTEST_CHECK(reports.Find("plan", "graph").outcome == Outcome::kUnknown);
  reports.Confirm("plan", "graph", {{"first", "second"}, {}});
  reports.Record("plan", "graph", TwoGroupReport());
  DOCTEST_CHECK(reports.Find("plan", "graph").outcome == Outcome::kUnknown);
}

DOCTEST_TEST_CASE("AGraphThatThePassHasNotSeenIsNotInForce") {
  RewriteReports reports;
  reports.Confirm("plan", "graph", {{}, {"a", "b"}});
  const GraphReport report = reports.Find("plan", "graph");
  DOCTEST_CHECK(report.outcome == Outcome::kLost);
  DOCTEST_CHECK_EQ(report.left.size(), 2u);
  DOCTEST_CHECK_EQ(report.skipped.size(), 1u);
}

DOCTEST_TEST_CASE("TheLatestGraphHasTheLargestSerial") {
  RewriteReports reports;
  reports.Record("plan", "one", TwoGroupReport());
  reports.Record("plan", "two", TwoGroupReport());
  DOCTEST_CHECK(reports.Find("plan", "one").serial < reports.Find("plan", "two").serial);
  reports.Confirm("plan", "one", {{"first", "second"}, {}});
  DOCTEST_CHECK(reports.Find("plan", "one").serial > reports.Find("plan", "two").serial);
}

DOCTEST_TEST_CASE("ProducersFollowTheGraph") {
  testing::Graph builder;
  builder.Add("Split", "split");
  builder.Add("LibraAllReduce", "first", {"split:1", "^split", "^other"});
  GraphReport report = TwoGroupReport();
  RefreshGroups(builder.def, &report.groups);
  DOCTEST_CHECK_EQ(report.groups[0].tensors[0].producer, "split");
  DOCTEST_CHECK_EQ(report.groups[0].tensors[0].port, 1);
  DOCTEST_CHECK_EQ(report.groups[0].control_inputs.size(), 2u);
  DOCTEST_CHECK_EQ(report.groups[1].tensors[0].producer, "");  // its node is gone
}

DOCTEST_TEST_CASE("JsonSaysNullTrueAndFalse") {
  RewriteReports reports;
  reports.Record("plan", "graph", TwoGroupReport());
  DOCTEST_CHECK_EQ(reports.ToJson("plan"), testing::Contains("\"in_force\": null"));
  reports.Confirm("plan", "graph", {{"first", "second"}, {"le\"ft"}});
  DOCTEST_CHECK_EQ(reports.ToJson("plan"), testing::Contains("\"in_force\": true"));
  DOCTEST_CHECK_EQ(reports.ToJson("plan"), testing::Contains("\"left\": [\"le\\\"ft\"]"));
  reports.Confirm("plan", "graph", {{"first"}, {}});
  DOCTEST_CHECK_EQ(reports.ToJson("plan"), testing::Contains("\"in_force\": false"));
  reports.Erase("plan");
  DOCTEST_CHECK_EQ(reports.ToJson("plan"), testing::Contains("\"graphs\": []"));
}

}  // namespace
}  // namespace tf_libra
