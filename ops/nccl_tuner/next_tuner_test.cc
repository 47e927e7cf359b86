// By which version of its interface another tuner is called, and with which arguments.
#include "ops/nccl_tuner/next_tuner.h"

#include <cstdarg>
#include <cstdio>
#include <map>
#include <string>

#include "ops/testing/checks.h"

namespace tf_libra {
namespace nccl {
namespace {

// What the fake tuner was called with last, and what its init returns.
struct Calls {
  Result init_result = kSuccess;
  uint64_t id = 0;
  size_t num_ranks = 0;
  void* links = nullptr;
  size_t num_bytes = 0;
  int registered_buffers = -1;
  int alive = 0;
};

Calls& TheCalls() {
  static Calls calls;
  return calls;
}

Result Begin(size_t num_ranks, void** context) {
  Calls& calls = TheCalls();
  calls.num_ranks = num_ranks;
  if (calls.init_result != kSuccess) return calls.init_result;
  *context = &calls;
  ++calls.alive;
  return kSuccess;
}

Result Init(size_t num_ranks, size_t, Log, void** context) { return Begin(num_ranks, context); }

Result InitNew(void** context, uint64_t id, size_t num_ranks, size_t, Log, void* links, void*) {
  TheCalls().id = id;
  TheCalls().links = links;
  return Begin(num_ranks, context);
}

Result Tell(void* context, size_t num_bytes, int registered_buffers, int* num_channels) {
  CHECK_EQ(context, &TheCalls());
  TheCalls().num_bytes = num_bytes;
  TheCalls().registered_buffers = registered_buffers;
  *num_channels = 11;
  return kSuccess;
}

Result Ask2(void* context, Collective, size_t num_bytes, int, int, int, int* algorithm, int*,
            int* num_channels) {
  *algorithm = kRing;
  return Tell(context, num_bytes, -1, num_channels);
}

Result Ask3(void* context, Collective, size_t num_bytes, int, CostTable, int, int,
            int* num_channels) {
  return Tell(context, num_bytes, -1, num_channels);
}

Result Ask4(void* context, Collective, size_t num_bytes, int, CostTable, int, int,
            int registered_buffers, int* num_channels) {
  return Tell(context, num_bytes, registered_buffers, num_channels);
}

Result Destroy(void* context) {
  CHECK_EQ(context, &TheCalls());
  --TheCalls().alive;
  return kSuccess;
}

const TunerV2 kTuner2 = {"fake", Init, Ask2, Destroy};
const TunerV3 kTuner3 = {"fake", Init, Ask3, Destroy};
const TunerV4 kTuner4 = {"fake", Init, Ask4, Destroy};
const TunerV5 kTuner5 = {"fake", InitNew, Ask4, Destroy};
const TunerV6 kTuner6 = {"fake", InitNew, Ask4, Destroy, nullptr};

// A library with these versions of the interface.
NextTuner::Lookup Library(std::initializer_list<int> versions) {
  static const std::map<int, const void*> tables = {
      {2, &kTuner2}, {3, &kTuner3}, {4, &kTuner4}, {5, &kTuner5}, {6, &kTuner6}};
  std::map<std::string, const void*> symbols;
  for (int version : versions) {
    symbols["ncclTunerPlugin_v" + std::to_string(version)] = tables.at(version);
  }
  return [symbols](const char* symbol) {
    const auto found = symbols.find(symbol);
    return found == symbols.end() ? nullptr : found->second;
  };
}

std::string& Logged() {
  static std::string text;
  return text;
}

void KeepLine(int, unsigned long, const char*, int, const char* format, ...) {
  char line[300];
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof(line), format, values);
  va_end(values);
  Logged() = line;
}

CommunicatorInfo Info(int version) {
  static int links;
  return {version, 77, 8, 2, KeepLine, &links, nullptr};
}

TEST_CASE("EveryVersionIsCalledAsItIsDeclared") {
  for (int version = 2; version <= 6; ++version) {
    TheCalls() = {};
    Logged().clear();
    const NextTuner tuner(Library({2, 3, 4, 5, 6}), "");
    const CommunicatorInfo info = Info(version);
    const NextCommunicator communicator = tuner.Init(info);
    CHECK_EQ(communicator.version, version);
    CHECK_EQ(TheCalls().num_ranks, size_t{8});
    CHECK_EQ(TheCalls().id, uint64_t{version >= 5 ? 77u : 0u});
    CHECK_EQ(TheCalls().links, version >= 5 ? info.links : nullptr);
    int channels = 0, algorithm = -1, protocol = -1;
    Question question;
    question.num_bytes = 4096;
    question.num_channels = &channels;
    question.algorithm = &algorithm;
    question.protocol = &protocol;
    question.registered_buffers = 1;
    CHECK_EQ(tuner.Ask(communicator, question), kSuccess);
    CHECK_EQ(channels, 11);
    CHECK_EQ(algorithm, version == 2 ? kRing : -1);
    CHECK_EQ(TheCalls().num_bytes, size_t{4096});
    CHECK_EQ(TheCalls().registered_buffers, version >= 4 ? 1 : -1);
    CHECK_EQ(tuner.Destroy(communicator), kSuccess);
    CHECK_EQ(TheCalls().alive, 0);
    CHECK_EQ(Logged(), "");
  }
}

// Version 5 describes links in its own layout, so a newer NCCL does not call it.
TEST_CASE("AnOlderTunerServesANewerNccl") {
  struct Case {
    int version;
    std::initializer_list<int> has;
    int used;
  };
  for (const Case& one : {Case{6, {2, 3}, 3}, Case{6, {3, 4, 5}, 4}, Case{5, {4, 6}, 4},
                          Case{4, {3, 5}, 3}, Case{6, {5}, 0}, Case{3, {4}, 0}, Case{4, {2}, 0}}) {
    TheCalls() = {};
    Logged().clear();
    const NextTuner tuner(Library(one.has), "");
    const NextCommunicator communicator = tuner.Init(Info(one.version));
    CHECK_EQ(communicator.version, one.used);
    CHECK_EQ(TheCalls().alive, one.used == 0 ? 0 : 1);
    CHECK_EQ(Logged().empty(), one.used != 0);
    CHECK_EQ(tuner.Destroy(communicator), kSuccess);
    CHECK_EQ(TheCalls().alive, 0);
  }
}

TEST_CASE("ATunerThatCannotBeUsedLeavesEverythingToNccl") {
  TheCalls() = {};
  TheCalls().init_result = kInternalError;
  NextTuner::Lookup own = [](const char* symbol) -> const void* {
    return std::string(symbol) == "TfLibraTunerSetPlan" ? &kTuner4 : nullptr;
  };
  for (const NextTuner& tuner :
       {NextTuner(Library({4}), ""), NextTuner(nullptr, "no such file"), NextTuner(own, "")}) {
    Logged().clear();
    const NextCommunicator communicator = tuner.Init(Info(4));
    CHECK_EQ(communicator.version, 0);
    CHECK_EQ(Logged(), testing::Contains("TF_LIBRA_NCCL_NEXT_TUNER"));
    int channels = 0;
    Question question;
    question.num_channels = &channels;
    CHECK_EQ(tuner.Ask(communicator, question), kSuccess);
    CHECK_EQ(channels, 0);
    CHECK_EQ(tuner.Destroy(communicator), kSuccess);
  }
  Logged().clear();
  CHECK_EQ(NextTuner(nullptr, "").Init(Info(4)).version, 0);
  CHECK_EQ(Logged(), "");  // none is configured
}

}  // namespace
}  // namespace nccl
}  // namespace tf_libra
