// No failure to allocate memory leaves the plugin, at whatever place it is.
#include "ops/nccl_tuner/guarded.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/nccl_tuner/testing.h"

namespace {

// Allocations of this thread to come until all fail; negative: none does.
thread_local int allocations_left = -1;
thread_local bool has_failed = false;

void* Allocate(size_t size) {
  if (allocations_left == 0) {
    has_failed = true;
    throw std::bad_alloc();
  }
  if (allocations_left > 0) --allocations_left;
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
// Not inlined: else the compiler sees `free` of what came from `new`, and warns of it.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace tf_libra {
namespace nccl {
namespace {

// Calls with no memory after so many allocations, for each number until the call needs no more;
// `check` gets what each failing call has returned. Returns how many failed.
template <typename Call, typename Check>
int FailEverywhere(Call call, Check check) {
  for (int count = 0;; ++count) {
    has_failed = false;
    allocations_left = count;
    const auto result = call();
    allocations_left = -1;
    if (!has_failed) return count;
    check(result);
  }
}

TEST_CASE("EveryKindOfExceptionIsAnError") {
  const auto told = [](auto body) {
    return Guarded([&]() -> std::string { return body(); },
                   [](const char* why) { return std::string(why); });
  };
  CHECK_EQ(told([] { return "well"; }), "well");
  CHECK_EQ(told([]() -> const char* { throw std::bad_alloc(); }), "out of memory");
  CHECK_EQ(told([]() -> const char* { throw std::runtime_error("why"); }), "why");
  CHECK_EQ(told([]() -> const char* { throw 5; }), "an exception of unknown type");
}

// First of all: the tuner itself does not exist before.
TEST_CASE("WithoutMemoryForTheTunerEveryCallFails") {
  TfLibraTunerCounts counts;
  void* context = nullptr;
  allocations_left = 0;
  const int results[] = {TfLibraTunerClearPlan(), TfLibraTunerBeginStep(),
                         TfLibraTunerReadCounts(&counts)};
  const int applied = TfLibraTunerReadApplied(nullptr, 0);
  const Result oldest = ncclTunerPlugin_v1.init(kRanks, 2, nullptr);
  const Result newest = ncclTunerPlugin_v6.init(&context, 7, kRanks, 2, nullptr, nullptr, nullptr);
  allocations_left = -1;
  for (const int result : results) CHECK_EQ(result, 2);
  CHECK_EQ(applied, -1);
  CHECK_EQ(TfLibraTunerLastError(), testing::Contains("out of memory"));
  CHECK_EQ(oldest, kInternalError);
  CHECK_EQ(newest, kInternalError);
  CHECK_EQ(Counts().communicators, 0);
}

TEST_CASE("APlanThatFindsNoMemoryChangesNothing") {
  CHECK_EQ(SetPlan({{100, 100, 7}}), 0);
  FakeNccl nccl(6);
  const std::vector<uint64_t> num_bytes = {100, 200, 300}, padded = {128, 256, 384};
  const std::vector<int> channels = {1, 2, 3};
  const auto set = [&](int size) {
    return TfLibraTunerSetPlan(kRanks, 1, size, num_bytes.data(), padded.data(), channels.data());
  };
  const int failures =
      FailEverywhere([&] { return set(3); },
                     [&](int result) {
                       CHECK_EQ(result, 2);
                       CHECK_EQ(TfLibraTunerLastError(), testing::Contains("out of memory"));
                       CHECK_EQ(nccl.Ask(100), 7);
                       CHECK_EQ(nccl.Ask(200), kUntouched);
                       CHECK_EQ(Applied().size(), 1u);
                     });
  CHECK(failures > 5);
  CHECK_EQ(nccl.Ask(200), 2);
  // Words about bad input need memory, too.
  FailEverywhere([&] { return set(0); }, [&](int result) { CHECK_EQ(result, 2); });
  CHECK_EQ(TfLibraTunerLastError(), testing::Contains("num_all_reduces must be at least 1, got 0"));
}

TEST_CASE("CallsThatReadFailAndWorkAgain") {
  CHECK_EQ(SetPlan({{100, 100, 7}, {200, 200, 8}}), 0);
  int64_t applied[2];
  const int failures = FailEverywhere([&] { return TfLibraTunerReadApplied(applied, 2); },
                                      [](int result) { CHECK_EQ(result, -1); });
  CHECK(failures > 0);
  CHECK_EQ(TfLibraTunerReadApplied(applied, 2), 2);
}

TEST_CASE("CommunicatorsThatCannotBeginAreNotCounted") {
  CHECK_EQ(SetPlan({{100, 100, 7}}), 0);
  FailEverywhere(
      [] {
        const Result result = ncclTunerPlugin_v1.init(kRanks, 2, nullptr);
        return result;
      },
      [](Result result) { CHECK_EQ(result, kInternalError); });
  CHECK_EQ(Counts().communicators, 1);
  int channels = kUntouched, other = -1;
  CHECK_EQ(ncclTunerPlugin_v1.get_coll_info(kAllReduce, 100, 0, 0, 1, &other, &other, &channels),
           kSuccess);
  CHECK_EQ(channels, 7);
  CHECK_EQ(ncclTunerPlugin_v1.destroy(), kSuccess);
  void* context = nullptr;
  FailEverywhere([&] { return ncclTunerPlugin_v4.init(kRanks, 2, nullptr, &context); },
                 [](Result result) { CHECK_EQ(result, kInternalError); });
  CHECK_EQ(Counts().communicators, 1);
  CHECK_EQ(ncclTunerPlugin_v4.destroy(context), kSuccess);
  CHECK_EQ(Counts().communicators, 0);
}

}  // namespace
}  // namespace nccl
}  // namespace tf_libra
