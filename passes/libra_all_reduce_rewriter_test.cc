// What an all-reduce of several tensors says of itself.

#include "passes/libra_all_reduce_rewriter.h"

#include <map>
#include <string>
#include <vector>

#include "passes/testing.h"

namespace tf_libra {
namespace {

// The attributes of group `group` of a plan whose groups have these threads and streams.
std::map<std::string, tensorflow::AttrValue> Attributes(
    const std::vector<std::pair<int, int>>& groups, int group,
    const std::vector<tensorflow::NodeDef>& members) {
  RegisteredPlan plan{"plan", "digest", {}, false};
  for (const auto& [num_threads, stream] : groups) plan.groups.push_back({{}, num_threads, stream});
  FusedGroup fused{plan, group, {}, {}};
  for (const auto& member : members) {
    fused.tensor_names.push_back(member.name());
    fused.members.push_back(&member);
  }
  tensorflow::NodeDef node;
  const LibraAllReduceRewriter rewriter;
  rewriter.Write(fused, &node);
  DOCTEST_CHECK_EQ(node.op(), "LibraAllReduce");
  return {node.attr().begin(), node.attr().end()};
}

std::vector<tensorflow::NodeDef> Members(int count) {
  testing::Graph builder;
  std::vector<tensorflow::NodeDef> members;
  for (int i = 0; i < count; ++i) {
    members.push_back(*builder.Reduce("t" + std::to_string(i), "grad" + std::to_string(i)));
  }
  return members;
}

DOCTEST_TEST_CASE("OneTensorOrSeveral") {
  for (const int count : {1, 2, 5}) {
    const auto attributes = Attributes({{1, 0}, {3, 0}}, 1, Members(count));
    DOCTEST_CHECK_EQ(attributes.at("N").i(), count);
    DOCTEST_CHECK_EQ(attributes.at("tensor_names").list().s_size(), count);
    DOCTEST_CHECK_EQ(attributes.at("num_threads").i(), 3);
    DOCTEST_CHECK_EQ(attributes.at("group").i(), 1);
    DOCTEST_CHECK_EQ(attributes.at("plan").s(), "plan");
  }
}

DOCTEST_TEST_CASE("WhatAllShareIsKept") {
  auto members = Members(2);
  auto attributes = Attributes({{1, 0}}, 0, members);
  DOCTEST_CHECK_EQ(attributes.count("reduction"), 0u);  // stripped: the default
  DOCTEST_CHECK_EQ(attributes.count("function"), 0u);
  for (auto& member : members) {
    (*member.mutable_attr())["reduction"].set_s("sum");
    (*member.mutable_attr())["function"].set_s("step");
  }
  attributes = Attributes({{1, 0}}, 0, members);
  DOCTEST_CHECK_EQ(attributes.at("reduction").s(), "sum");
  DOCTEST_CHECK_EQ(attributes.at("function").s(), "step");
  DOCTEST_CHECK_EQ(attributes.at("T").type(), tensorflow::DT_FLOAT);
}

// As many as the widest group of each stream before has threads.
DOCTEST_TEST_CASE("StreamsHaveLanesOfTheirOwn") {
  const std::vector<std::pair<int, int>> groups = {{1, 0}, {2, 2}, {3, 0}, {4, 1}, {1, 1}, {1, 7}};
  const std::vector<int> first_lanes = {0, 7, 0, 3, 3, 9};
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto attributes = Attributes(groups, static_cast<int>(i), Members(1));
    DOCTEST_CHECK_EQ(attributes.at("first_lane").i(), first_lanes[i]);
    DOCTEST_CHECK_EQ(attributes.at("stream").i(), groups[i].second);
  }
}

}  // namespace
}  // namespace tf_libra
