// A wall clock that is set while the lanes work. This program has a clock of its own.
#include "ops/lanes/clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "ops/lanes/lane_engine.h"
#include "ops/lanes/testing.h"

namespace {
// By how much the wall clock was set.
std::atomic<int64_t> shift_seconds{0};
}  // namespace

// Takes the place of the C library's.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += shift_seconds;
  return result;
}

namespace tf_libra::clock_test {
namespace {

using testing::ConnectAll;
using testing::kGenerousSeconds;
using testing::kShortSeconds;
using testing::OnEveryRank;

constexpr int64_t kHour = 3600;

TEST_CASE("AWaitThatIsTooLongNamesTheOptionAndTheBarrier") {
  const std::string text = WaitedTooLong(30, "rank(s) 1, 2");
  for (const char* part : {"waited 30 s for rank(s) 1, 2", "timeout_seconds",
                           "TF_LIBRA_TIMEOUT_SECONDS", "a barrier"}) {
    CHECK_EQ(text, testing::Contains(part));
  }
}

TEST_CASE("TimesKeepTheirOrder") {
  shift_seconds = 0;
  const WallClock before;
  const int64_t early = before.Nanos();
  shift_seconds = -kHour;
  CHECK(before.Nanos() >= early);
  CHECK(WallClock().Nanos() < early);  // a new object sees the time that was set
  CHECK_EQ(before.At(0), 0);
}

// Between steps and in the middle of all-reduces, back and forth.
TEST_CASE("AllReducesWhileTheClockIsSet") {
  const int world_size = 2;
  std::vector<Mesh> meshes = ConnectAll(world_size, 2);
  std::vector<std::shared_ptr<LaneEngine>> engines(world_size);
  LaneEngineOptions options;
  options.timeout_seconds = kGenerousSeconds;
  std::atomic<int> warnings{0};
  options.warn = [&](const std::string&) { ++warnings; };
  for (int rank = 0; rank < world_size; ++rank) {
    CHECK_EQ(LaneEngine::Start(options, std::move(meshes[rank]), &engines[rank]), testing::IsOk());
  }
  std::atomic<bool> over{false};
  std::thread setter([&] {
    while (!over) shift_seconds = shift_seconds == 0 ? -kHour : 0;
  });
  OnEveryRank(world_size, [&](int rank) {
    auto operation = std::make_shared<OperationInfo>();
    operation->num_threads = 2;
    operation->tensor_names = {"tensor"};
    operation->ComputeDigest();
    std::vector<float> values(10000, 1.0f);
    for (int step = 0; step < 200; ++step) {
      engines[rank]->SetStep(step);
      std::promise<Status> end;
      AllReduceRequest request;
      request.operation = operation;
      request.tensors = {{values.data(), values.data(), values.size() * sizeof(float)}};
      request.done = [&end](const Status& status) { end.set_value(status); };
      engines[rank]->AllReduce(std::move(request));
      CHECK_EQ(end.get_future().get(), testing::IsOk());
    }
  });
  over = true;
  setter.join();
  for (const auto& engine : engines) {
    uint64_t dropped;
    const std::vector<AllReduceRecord> records = engine->telemetry()->Drain(&dropped);
    CHECK_EQ(records.size(), 200u);
    for (const AllReduceRecord& record : records) {
      CHECK(record.enqueued_nanos <= record.started_nanos);
      CHECK(record.started_nanos <= record.first_byte_nanos);
      CHECK(record.first_byte_nanos <= record.finished_nanos);
      // It was not an hour that it took.
      CHECK(record.finished_nanos - record.enqueued_nanos < 240'000'000'000);
    }
  }
  CHECK_EQ(warnings, 0);
}

// Each of these waits ends although its clock shows an earlier time than when it began.
TEST_CASE("WaitsEndWhenTheClockIsSetBack") {
  std::vector<Mesh> meshes = ConnectAll(2, 1);
  LaneEngineOptions options;
  options.timeout_seconds = kShortSeconds;
  std::shared_ptr<LaneEngine> engine;
  CHECK_EQ(LaneEngine::Start(options, std::move(meshes[0]), &engine), testing::IsOk());
  std::vector<std::string> all;
  std::atomic<bool> over{false};
  std::thread setter([&] {
    while (!over) --shift_seconds;
  });
  CHECK_EQ(engine->AllGather("x", &all),
           testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 1"));
  testing::Meeting meeting(2, 1, kShortSeconds);
  Mesh mesh;
  CHECK_EQ(meeting.Connect(0, &mesh),
           testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 1"));
  over = true;
  setter.join();
}

}  // namespace
}  // namespace tf_libra::clock_test
