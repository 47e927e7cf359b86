// What ranks send and leave out, by their records: on one level, on two, and in several streams.
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "ops/lanes/engine_testing.h"
#include "ops/lanes/hosts_testing.h"
#include "ops/lanes/testing.h"

namespace tf_libra::zero_blocks_records_test {
namespace {

using testing::Operation;

using Floats = std::vector<float>;

std::future<Status> Start(LaneEngine* engine, const Operation& operation, Floats* values) {
  auto end = std::make_shared<std::promise<Status>>();
  AllReduceRequest request;
  request.operation = operation.Info();
  request.element_type = operation.type;
  request.tensors.push_back({values->data(), values->data(), values->size() * sizeof(float)});
  request.done = [end](const Status& status) { end->set_value(status); };
  std::future<Status> status = end->get_future();
  engine->AllReduce(std::move(request));
  return status;
}

std::vector<AllReduceRecord> RecordsOf(LaneEngine* engine) {
  uint64_t dropped = 0;
  return engine->telemetry()->Drain(&dropped);
}

// Of 409,600 bytes each rank sends `num_bytes`, or leaves them out if they are zeros. Shares of
// ranks are whole blocks.
void CheckCounts(std::vector<Mesh> meshes, uint64_t num_bytes) {
  const int world_size = static_cast<int>(meshes.size());
  Operation operation;
  operation.counts = {102'400};
  operation.num_threads = static_cast<int>(meshes[0].lanes.size());
  const testing::Engines engines = testing::MakeEngines(std::move(meshes));
  for (const float value : {0.0f, 1.0f}) {
    testing::OnEveryRank(world_size, [&](int rank) {
      Floats values(operation.counts[0], value);
      CHECK_EQ(Start(engines[rank].get(), operation, &values).get(), testing::IsOk());
    });
    for (const auto& engine : engines) {
      const std::vector<AllReduceRecord> records = RecordsOf(engine.get());
      CHECK_EQ(records.size(), 1u);
      for (const AllReduceRecord& record : records) {
        CHECK_EQ(record.num_omitted_bytes, value == 0 ? num_bytes : 0u);
        CHECK_EQ(record.num_sent_bytes, value == 0 ? 0u : num_bytes);
      }
    }
  }
}

TEST_CASE("OnOneLevel") {
  testing::OverAll();
  CheckCounts(testing::ConnectAll(2, 2), 409'600);
}

// Between hosts alone, and in each level of a square of hosts.
TEST_CASE("OnTwoLevels") {
  CheckCounts(testing::ConnectHosts(testing::Hosts(2, 2), 2), 204'800);
  CheckCounts(testing::ConnectHosts(testing::HostsOfOneRank(16), 1), 768'000);
}

// Of so many times 4 KiB, those of one are not zeros.
Floats OneIn(size_t period) {
  Floats values(150'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i / 1024 % period == 0 ? 1.0f : 0.0f;
  return values;
}

// Each of several concurrent all-reduces leaves out its zeros, on its own lane.
TEST_CASE("InStreams") {
  testing::OverBoth();
  constexpr int kWorld = 3, kStreams = 4;
  const testing::Engines engines = testing::MakeEngines(testing::ConnectAll(kWorld, kStreams));
  testing::OnEveryRank(kWorld, [&](int rank) {
    std::vector<Floats> values;
    std::vector<std::future<Status>> ends;
    for (int stream = 0; stream < kStreams; ++stream) values.push_back(OneIn(stream + 2));
    for (int stream = 0; stream < kStreams; ++stream) {
      Operation operation;
      operation.counts = {values[stream].size()};
      operation.first_lane = operation.group = stream;
      ends.push_back(Start(engines[rank].get(), operation, &values[stream]));
    }
    for (int stream = 0; stream < kStreams; ++stream) {
      CHECK_EQ(ends[stream].get(), testing::IsOk());
      CHECK(values[stream] == OneIn(stream + 2));
    }
    const std::vector<AllReduceRecord> records = RecordsOf(engines[rank].get());
    CHECK_EQ(records.size(), static_cast<size_t>(kStreams));
    for (const AllReduceRecord& record : records) {
      const uint64_t all = 2 * (kWorld - 1) * record.num_bytes / kWorld;
      const uint64_t expected = all / (record.operation->group + 2);
      CHECK_EQ(record.num_sent_bytes + record.num_omitted_bytes, all);
      // Blocks are counted from the beginning of each chunk.
      CHECK(record.num_sent_bytes < expected + all / 10);
      CHECK(record.num_sent_bytes > expected - all / 10);
    }
  });
}

}  // namespace
}  // namespace tf_libra::zero_blocks_records_test
