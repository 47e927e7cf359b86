#include "ops/lanes/all_reduce_job.h"

#include <memory>
#include <string>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::all_reduce_job_test {
namespace {

std::shared_ptr<OperationInfo> OnLanes(int first_lane, int num_threads) {
  auto info = std::make_shared<OperationInfo>();
  info->first_lane = first_lane;
  info->num_threads = num_threads;
  info->tensor_names = {"one", "other"};
  info->ComputeDigest();
  return info;
}

AllReduceJob JobOf(const std::vector<TensorView>& tensors, bool in_two_levels = false) {
  AllReduceRequest request;
  request.operation = OnLanes(1, 2);
  request.tensors = tensors;
  return AllReduceJob(request, 7, WallClock(), in_two_levels);
}

TEST_CASE("LanesThatThereAreNot") {
  CHECK_EQ(CheckLanes(*OnLanes(0, 4), 4), testing::IsOk());
  CHECK_EQ(CheckLanes(*OnLanes(3, 1), 4), testing::IsOk());
  for (const int num_threads : {0, -1, 5}) {
    CHECK_EQ(CheckLanes(*OnLanes(0, num_threads), 4),
             testing::StatusIs(StatusCode::kInvalidArgument,
                               "num_threads must be between 1 and the engine's 4 lane(s), got " +
                                   std::to_string(num_threads)));
  }
  for (const int first_lane : {-1, 3}) {
    CHECK_EQ(CheckLanes(*OnLanes(first_lane, 2), 4),
             testing::StatusIs(StatusCode::kInvalidArgument,
                               "first_lane must be between 0 and 2 for 2 of 4 lane(s), got " +
                                   std::to_string(first_lane)));
  }
}

// As is compared with every other rank.
TEST_CASE("HeaderTellsHowTensorsAreCut") {
  std::vector<char> memory(12);
  char* const data = memory.data();
  const AllReduceJob one = JobOf({{data, data, 4}, {data + 4, data + 4, 8}});
  const AllReduceJob other = JobOf({{data, data, 8}, {data + 8, data + 8, 4}});
  CHECK_EQ(one.header.num_bytes, 12u);
  CHECK_EQ(other.header.num_bytes, 12u);
  CHECK(one.header.digest != other.header.digest);
  CHECK_EQ(one.header.digest, JobOf({{data, data, 4}, {data + 4, data + 4, 8}}).header.digest);
  CHECK_EQ(one.header.num_threads, 2);
  CHECK_EQ(one.range().first, 1);
  CHECK_EQ(one.range().count, 2);
}

TEST_CASE("OutputsInPlaceOnTwoLevels") {
  std::vector<char> input(4, 'i'), output(4, 'o');
  const AllReduceJob job = JobOf({{input.data(), output.data(), 4}}, true);
  job.in_place.ForEachRun({0, 4}, [&](const char* in, char* out, size_t) {
    CHECK((in == output.data() && out == output.data()));
    return true;
  });
  CHECK_EQ(job.buffers.num_bytes(), 4u);
  CHECK_EQ(JobOf({{input.data(), output.data(), 4}}).in_place.num_bytes(), 0u);
}

TEST_CASE("TheEarliestTimeStays") {
  AllReduceJob job = JobOf({});
  const int64_t now = SteadyNanos();
  job.Began(now + 1);
  job.Began(now);
  job.Began(now + 2);
  job.HeardAll(0);  // a lane without peers
  job.Ended();
  CHECK_EQ(job.record.started_nanos, job.wall.At(now));
  CHECK_EQ(job.record.first_byte_nanos, 0);
  CHECK_EQ(job.record.step, 7);
  CHECK(job.record.enqueued_nanos <= job.record.finished_nanos);
}

}  // namespace
}  // namespace tf_libra::all_reduce_job_test
