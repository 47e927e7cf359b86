#include "passes/plan_registry.h"

#include <memory>
#include <string>
#include <vector>

#include "passes/testing.h"

namespace tf_libra {
namespace {

RegisteredPlan PlanOf(const std::string& id, const std::string& digest = "digest") {
  return {id, digest, {{{"a", "b"}, 1, 0}, {{"c"}, 2, 0}}, false};
}

void EachRegisterIsUndoneByOneUnregister() {
  PlanRegistry registry;
  bool last = false;
  for (int i = 0; i < 3; ++i) EXPECT_THAT_TRUE(registry.Register(PlanOf("plan")).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT_TRUE(registry.Unregister("plan", &last).ok());
    EXPECT_THAT_TRUE(!last && registry.Find("plan") != nullptr);
  }
  EXPECT_THAT_TRUE(registry.Unregister("plan", &last).ok());
  EXPECT_THAT_TRUE(last && registry.Find("plan") == nullptr);
  EXPECT_THAT_TRUE(absl::IsNotFound(registry.Unregister("plan", &last)));
  EXPECT_THAT_TRUE(registry.Register(PlanOf("plan", "another")).ok());
}

void WhoHoldsAPlanGoesOnUsingIt() {
  PlanRegistry registry;
  EXPECT_THAT_TRUE(registry.Register(PlanOf("plan")).ok());
  const std::shared_ptr<const RegisteredPlan> held = registry.Find("plan");
  bool last = false;
  EXPECT_THAT_TRUE(registry.Unregister("plan", &last).ok());
  EXPECT_SAME(held->groups[1].tensor_names[0], "c");
}

void AnotherDigestIsRefusedAndDoesNotCount() {
  PlanRegistry registry;
  EXPECT_THAT_TRUE(registry.Register(PlanOf("plan")).ok());
  EXPECT_THAT_TRUE(absl::IsAlreadyExists(registry.Register(PlanOf("plan", "another"))));
  bool last = false;
  EXPECT_THAT_TRUE(registry.Unregister("plan", &last).ok() && last);
}

void LimitsOfFields() {
  const auto is_valid = [](PlanGroup group) {
    return ValidatePlan({"plan", "digest", {std::move(group)}, false}).ok();
  };
  EXPECT_THAT_TRUE(is_valid({{"a"}, 1, 0}) && !is_valid({{"a"}, 0, 0}));
  EXPECT_THAT_TRUE(!is_valid({{"a"}, 1, -1}));
  EXPECT_THAT_TRUE(!is_valid({{}, 1, 0}));
  EXPECT_THAT_TRUE(!is_valid({{""}, 1, 0}) && !is_valid({{"a", "a"}, 1, 0}));
  EXPECT_THAT_TRUE(!ValidatePlan({"plan", "digest", {}, false}).ok());
}

}  // namespace
}  // namespace tf_libra

int main() {
  using namespace tf_libra;
  return testing::RunTests(
      {{"EachRegisterIsUndoneByOneUnregister", EachRegisterIsUndoneByOneUnregister},
       {"WhoHoldsAPlanGoesOnUsingIt", WhoHoldsAPlanGoesOnUsingIt},
       {"AnotherDigestIsRefusedAndDoesNotCount", AnotherDigestIsRefusedAndDoesNotCount},
       {"LimitsOfFields", LimitsOfFields}});
}
