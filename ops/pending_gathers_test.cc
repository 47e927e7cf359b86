#include "ops/pending_gathers.h"

#include <string>
#include <thread>

#include "ops/testing/tensorflow.h"

namespace tf_libra {
namespace {

const Status kRankIsGone(StatusCode::kUnavailable, "rank 1 is gone");
const int kGathered[3] = {};

DOCTEST_TEST_CASE("AWaitEndsWithTheLastOfItsVariables") {
  PendingGathers gathers;
  const void* const first = &kGathered[0];
  const void* const second = &kGathered[1];
  int called = 0;
  const auto count = [&] { ++called; };
  gathers.Await({first, second}, count);
  DOCTEST_CHECK_EQ(called, 1);  // nothing is gathered
  gathers.Begin({first});
  gathers.Begin({first, second});
  gathers.Await({first, second}, count);
  gathers.Await({&kGathered[2]}, count);
  DOCTEST_CHECK_EQ(called, 2);
  gathers.End({first, second}, Status());
  DOCTEST_CHECK_EQ(called, 2);  // `first` is gathered twice
  gathers.Await({second}, count);
  DOCTEST_CHECK_EQ(called, 3);
  gathers.End({first}, Status());
  DOCTEST_CHECK_EQ(called, 4);
}

DOCTEST_TEST_CASE("TheFirstFailureStaysUntilItIsForgotten") {
  PendingGathers gathers;
  gathers.Begin({&kGathered[0]});
  gathers.End({&kGathered[0]}, kRankIsGone);
  DOCTEST_CHECK_EQ(gathers.failure().message(), kRankIsGone.message());
  DOCTEST_CHECK_EQ(gathers.AwaitAll(60).message(), kRankIsGone.message());
  gathers.Begin({&kGathered[0]});
  gathers.End({&kGathered[0]}, Status());
  DOCTEST_CHECK(!gathers.AwaitAll(60).ok());
  gathers.ForgetFailure();
  DOCTEST_CHECK(gathers.AwaitAll(60).ok());
}

DOCTEST_TEST_CASE("AllAreAwaitedUntilADeadline") {
  PendingGathers gathers;
  gathers.Begin({&kGathered[0]});
  DOCTEST_CHECK(gathers.AwaitAll(0.001).code() == StatusCode::kDeadlineExceeded);
  std::thread other([&] { gathers.End({&kGathered[0]}, Status()); });
  DOCTEST_CHECK(gathers.AwaitAll(60).ok());
  other.join();
}

}  // namespace
}  // namespace tf_libra
