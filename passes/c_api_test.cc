// What Python calls, where memory runs out at any moment.

#include "passes/c_api.h"

#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "passes/testing.h"

namespace {

// Allocations of this thread that still succeed; -1 where all do.
thread_local int allocations_left = -1;

}  // namespace

void* operator new(size_t size) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tf_libra {
namespace {

// Longer than what a string holds in itself.
const std::string kPlan(100, 'p');
const std::string kDigest(100, 'd');
const std::string kTensor(100, 't');

int Register() {
  const int sizes[] = {1}, threads[] = {1}, streams[] = {0};
  const char* const names[] = {kTensor.c_str()};
  const long long starts[] = {-1};
  return TfLibraRegisterPlan(kPlan.c_str(), kDigest.c_str(), 1, sizes, threads, streams, names,
                             starts, 0, "", 1, sizes, threads, names);
}

// Calls `function` with ever more memory, until it succeeds; returns how often it failed.
template <typename Function>
int FailuresOf(Function function) {
  for (int left = 0;; ++left) {
    allocations_left = left;
    const int code = function();
    allocations_left = -1;
    if (code == 0) return left;
    DOCTEST_CHECK_EQ(std::string(TfLibraLastPlanError()), "out of memory");
  }
}

DOCTEST_TEST_CASE("MemoryThatRunsOutIsAnErrorLikeAnyOther") {
  DOCTEST_CHECK(FailuresOf(Register) > 3);
  DOCTEST_CHECK_EQ(std::string(TfLibraLastPlanError()), "");
  DOCTEST_CHECK(FailuresOf([] { return TfLibraRewriteReport(kPlan.c_str()) == nullptr ? 1 : 0; }) >
                3);
  DOCTEST_CHECK(FailuresOf([] { return TfLibraUnregisterPlan(kPlan.c_str()); }) > 0);
  // None of the failures has left anything behind.
  DOCTEST_CHECK_EQ(TfLibraUnregisterPlan(kPlan.c_str()), 1);
  DOCTEST_CHECK_EQ(std::string(TfLibraLastPlanError()), testing::Contains("is not registered"));
}

DOCTEST_TEST_CASE("AReasonThatDoesNotFitIntoMemoryIsStillGiven") {
  allocations_left = 0;
  const int code = TfLibraUnregisterPlan("never registered, and with a name that is not short");
  allocations_left = -1;
  DOCTEST_CHECK_EQ(code, 1);
  DOCTEST_CHECK_EQ(std::string(TfLibraLastPlanError()), "out of memory");
}

}  // namespace
}  // namespace tf_libra
