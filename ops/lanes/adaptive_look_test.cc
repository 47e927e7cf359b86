#include "ops/lanes/adaptive_look.h"

#include "ops/lanes/testing.h"

namespace tf_libra {
namespace {

// Waits for what is there or not. Returns whether this wait looked for it.
bool Looks(AdaptiveLook* look, bool is_there) {
  int num_calls = 0;
  const bool found = look->Find([&] {
    ++num_calls;
    return is_there;
  });
  CHECK_EQ(found, is_there && num_calls > 0);
  CHECK((!is_there || num_calls <= 1));
  return num_calls > 0;
}

// Waits from one look to the next.
int CountSkipped(AdaptiveLook* look, bool is_there) {
  int num_skipped = 0;
  while (!Looks(look, is_there)) ++num_skipped;
  return num_skipped;
}

TEST_CASE("LooksThatFindNothingBecomeRare") {
  AdaptiveLook look;
  for (const int expected : {0, 1, 3, 7, 15, 31, 63, 63}) {
    CHECK_EQ(CountSkipped(&look, false), expected);
  }
}

TEST_CASE("LooksThatFindSomethingBecomeFrequent") {
  AdaptiveLook look;
  for (int i = 0; i < 10; ++i) CountSkipped(&look, false);
  for (const int expected : {63, 31, 15, 7, 3, 1, 0, 0}) {
    CHECK_EQ(CountSkipped(&look, true), expected);
  }
}

TEST_CASE("RanksWithoutACoreEachDoNotLook") {
  CHECK(AdaptiveLook::HasCores(1));
  CHECK(!AdaptiveLook::HasCores(1 << 20));
}

}  // namespace
}  // namespace tf_libra
