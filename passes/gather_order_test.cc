#include "passes/gather_order.h"

#include <string>
#include <vector>

#include "passes/testing.h"

namespace tf_libra {
namespace {

ReportedGroup GroupOf(const std::vector<std::string>& names) {
  ReportedGroup group;
  for (const std::string& name : names) group.tensors.push_back({name, "", 0});
  return group;
}

DOCTEST_TEST_CASE("GathersFollowThePlanOrTheAllReduces") {
  ReportedGroup first = GroupOf({"a", "b"}), second = GroupOf({"c"});
  // Two assignments update the weight of "b".
  const ShardedGroup one{&first, 10, {{11, 0}, {12, 1}, {15, 1}}}, two{&second, 20, {{13, 0}}};
  const auto assigns = [](const std::vector<Gather>& gathers) {
    std::vector<std::vector<int>> found;
    for (const Gather& gather : gathers) found.push_back(gather.assigns);
    return found;
  };
  using Nodes = std::vector<std::vector<int>>;
  const std::vector<Gather> by_group = GathersOf({&two, &one}, {});
  DOCTEST_CHECK((assigns(by_group) == Nodes{{13}, {11, 12, 15}}));
  DOCTEST_CHECK((by_group[0].root == 20 && by_group[0].num_threads == 0));

  const std::vector<GatherGroup> planned = {{{"c", "b"}, 2}, {{"a"}, 1}};
  const std::vector<Gather> gathers = GathersOf({&two, &one}, planned);
  DOCTEST_CHECK((assigns(gathers) == Nodes{{13, 12, 15}, {11}}));
  DOCTEST_CHECK((gathers[0].num_threads == 2 && gathers[1].num_threads == 1));
  // Updates of `one` stay whole.
  DOCTEST_CHECK((assigns(GathersOf({&two}, planned)) == Nodes{{13}}));
}

}  // namespace
}  // namespace tf_libra
