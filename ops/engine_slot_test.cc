#include "ops/engine_slot.h"

#include <memory>

#include "ops/testing/engine_of_one.h"
#include "ops/testing/tensorflow.h"

namespace tf_libra {
namespace {

DOCTEST_TEST_CASE("OneIsInPlaceOrNone") {
  DOCTEST_CHECK(ActiveEngine() == nullptr);
  std::shared_ptr<Engine> first = testing::EngineOfOne(), second = testing::EngineOfOne();
  DOCTEST_CHECK(first != nullptr);
  DOCTEST_CHECK(ExchangeActiveEngine(first) == nullptr);
  DOCTEST_CHECK(ActiveEngine() == first);
  DOCTEST_CHECK(ExchangeActiveEngine(second) == first);
  DOCTEST_CHECK(ActiveEngine() == second);
  DOCTEST_CHECK(ExchangeActiveEngine(nullptr) == second);
  DOCTEST_CHECK(ActiveEngine() == nullptr);
}

// A kernel that has found it may go on with it after it was closed.
DOCTEST_TEST_CASE("WhoHasFoundItKeepsIt") {
  ExchangeActiveEngine(testing::EngineOfOne());
  std::shared_ptr<Engine> used = ActiveEngine();
  const std::weak_ptr<Engine> seen = used;
  ExchangeActiveEngine(nullptr);
  DOCTEST_CHECK(!seen.expired());
  used.reset();
  DOCTEST_CHECK(seen.expired());
}

}  // namespace
}  // namespace tf_libra
