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
  EXPECT_SAME(node.op(), "LibraAllReduce");
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

void OneTensorOrSeveral() {
  for (const int count : {1, 2, 5}) {
    const auto attributes = Attributes({{1, 0}, {3, 0}}, 1, Members(count));
    EXPECT_SAME(attributes.at("N").i(), count);
    EXPECT_SAME(attributes.at("tensor_names").list().s_size(), count);
    EXPECT_SAME(attributes.at("num_threads").i(), 3);
    EXPECT_SAME(attributes.at("group").i(), 1);
    EXPECT_SAME(attributes.at("plan").s(), "plan");
  }
}

void WhatAllShareIsKept() {
  auto members = Members(2);
  auto attributes = Attributes({{1, 0}}, 0, members);
  EXPECT_SAME(attributes.count("reduction"), 0u);  // stripped: the default
  EXPECT_SAME(attributes.count("function"), 0u);
  for (auto& member : members) {
    (*member.mutable_attr())["reduction"].set_s("sum");
    (*member.mutable_attr())["function"].set_s("step");
  }
  attributes = Attributes({{1, 0}}, 0, members);
  EXPECT_SAME(attributes.at("reduction").s(), "sum");
  EXPECT_SAME(attributes.at("function").s(), "step");
  EXPECT_SAME(attributes.at("T").type(), tensorflow::DT_FLOAT);
}

// As many as the widest group of each stream before has threads.
void StreamsHaveLanesOfTheirOwn() {
  const std::vector<std::pair<int, int>> groups = {{1, 0}, {2, 2}, {3, 0}, {4, 1}, {1, 1}, {1, 7}};
  const std::vector<int> first_lanes = {0, 7, 0, 3, 3, 9};
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto attributes = Attributes(groups, static_cast<int>(i), Members(1));
    EXPECT_SAME(attributes.at("first_lane").i(), first_lanes[i]);
    EXPECT_SAME(attributes.at("stream").i(), groups[i].second);
  }
}

}  // namespace
}  // namespace tf_libra

int main() {
  using namespace tf_libra;
  return testing::RunTests({{"OneTensorOrSeveral", OneTensorOrSeveral},
                            {"WhatAllShareIsKept", WhatAllShareIsKept},
                            {"StreamsHaveLanesOfTheirOwn", StreamsHaveLanesOfTheirOwn}});
}
