#include "passes/plan_registry.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "passes/testing.h"

namespace tf_libra {
namespace {

RegisteredPlan PlanOf(const std::string& id, const std::string& digest = "digest") {
  return {id, digest, {{{"a", "b"}, 1, 0}, {{"c"}, 2, 0}}, false};
}

DOCTEST_TEST_CASE("EachRegisterIsUndoneByOneUnregister") {
  PlanRegistry registry;
  bool last = false;
  for (int i = 0; i < 3; ++i) DOCTEST_CHECK(registry.Register(PlanOf("plan")).ok());
  for (int i = 0; i < 2; ++i) {
    DOCTEST_CHECK(registry.Unregister("plan", &last).ok());
    DOCTEST_CHECK((!last && registry.Find("plan") != nullptr));
  }
  DOCTEST_CHECK(registry.Unregister("plan", &last).ok());
  DOCTEST_CHECK((last && registry.Find("plan") == nullptr));
  DOCTEST_CHECK(absl::IsNotFound(registry.Unregister("plan", &last)));
  DOCTEST_CHECK(registry.Register(PlanOf("plan", "another")).ok());
}

DOCTEST_TEST_CASE("WhoHoldsAPlanGoesOnUsingIt") {
  PlanRegistry registry;
  DOCTEST_CHECK(registry.Register(PlanOf("plan")).ok());
  const std::shared_ptr<const RegisteredPlan> plan = registry.Find("plan");
  bool last = false;
  DOCTEST_CHECK(registry.Unregister("plan", &last).ok());
  DOCTEST_CHECK_EQ(plan->groups[1].tensor_names[0], "c");
}

DOCTEST_TEST_CASE("AnotherDigestIsRefusedAndDoesNotCount") {
  PlanRegistry registry;
  DOCTEST_CHECK(registry.Register(PlanOf("plan")).ok());
  DOCTEST_CHECK(absl::IsAlreadyExists(registry.Register(PlanOf("plan", "another"))));
  bool last = false;
  DOCTEST_CHECK((registry.Unregister("plan", &last).ok() && last));
}

DOCTEST_TEST_CASE("LimitsOfFields") {
  const auto is_valid = [](PlanGroup group) {
    return ValidatePlan({"plan", "digest", {std::move(group)}, false}).ok();
  };
  DOCTEST_CHECK((is_valid({{"a"}, 1, 0}) && !is_valid({{"a"}, 0, 0})));
  DOCTEST_CHECK(!is_valid({{"a"}, 1, -1}));
  DOCTEST_CHECK(!is_valid({{}, 1, 0}));
  DOCTEST_CHECK((!is_valid({{""}, 1, 0}) && !is_valid({{"a", "a"}, 1, 0})));
  DOCTEST_CHECK(!ValidatePlan({"plan", "digest", {}, false}).ok());
  const auto are_valid = [](std::vector<GatherGroup> gathers) {
    RegisteredPlan plan = PlanOf("plan");
    plan.gathers = std::move(gathers);
    return ValidatePlan(plan).ok();
  };
  DOCTEST_CHECK(are_valid({{{"c", "b"}, 1}, {{"a"}, 2}}));
  DOCTEST_CHECK(!are_valid({{{"c", "b"}, 0}, {{"a"}, 2}}));
  DOCTEST_CHECK(!are_valid({{{"c", "b"}, 1}}));
  DOCTEST_CHECK(!are_valid({{{"c", "b"}, 1}, {{"a", "b"}, 2}}));
  DOCTEST_CHECK(!are_valid({{{"c", "b"}, 1}, {{"a", "d"}, 2}}));
}

}  // namespace
}  // namespace tf_libra
