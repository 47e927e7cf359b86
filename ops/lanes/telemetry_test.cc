#include "ops/lanes/telemetry.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::telemetry_test {
namespace {

OperationInfo Info() {
  OperationInfo info;
  info.plan = "1a2b";
  info.group = 2;
  info.num_threads = 3;
  info.tensor_names = {"conv/kernel", "conv/bias"};
  info.ComputeDigest();
  return info;
}

// Each field counts, and names do not run into each other.
TEST_CASE("DigestsDiffer") {
  std::vector<OperationInfo> infos(11, Info());
  infos[10].is_gather = true;
  infos[9].function = "train_step";
  infos[1].plan = "1a2c";
  infos[2].group = 3;
  infos[3].num_threads = 2;
  infos[4].reduction = Reduction::kSum;
  infos[5].tensor_names = {"conv/bias", "conv/kernel"};
  infos[6].tensor_names = {"conv/kernelconv/bias"};
  infos[7].tensor_names = {"conv/kernelc", "onv/bias"};
  infos[8].tensor_names = {"conv/kernel", "conv/bias", ""};
  std::set<uint64_t> digests;
  for (OperationInfo& info : infos) {
    info.ComputeDigest();
    digests.insert(info.digest);
  }
  CHECK_EQ(digests.size(), infos.size());
  CHECK_EQ(Info().digest, infos[0].digest);
}

TEST_CASE("Descriptions") {
  OperationInfo info = Info();
  CHECK_EQ(info.Describe(), "group 2 (conv/kernel, conv/bias) of plan 1a2b");
  info.function = "train_step";
  CHECK_EQ(info.Describe(), "group 2 (conv/kernel, conv/bias) of plan 1a2b in train_step");
  info.is_gather = true;
  info.group = -1;
  CHECK_EQ(info.Describe(), "a gather (conv/kernel, conv/bias) of plan 1a2b in train_step");
  info = OperationInfo();
  CHECK_EQ(info.Describe(), "an unplanned all-reduce");
  info.tensor_names = {"dense/kernel"};
  CHECK_EQ(info.Describe(), "an unplanned all-reduce (dense/kernel)");
  info.tensor_names = {"a", "b", "c", "d", "e"};
  CHECK_EQ(info.Describe(), "an unplanned all-reduce (a, b, c and 2 more)");
}

// Memory stays bounded if no reader drains.
TEST_CASE("OldRecordsAreDropped") {
  Telemetry telemetry;
  const auto operation = std::make_shared<const OperationInfo>(Info());
  for (uint64_t i = 0; i < Telemetry::kMaxRecords + 5; ++i) {
    AllReduceRecord record;
    record.operation = operation;
    record.sequence = i;
    telemetry.Add(record);
  }
  uint64_t dropped = 0;
  const std::vector<AllReduceRecord> records = telemetry.Drain(&dropped);
  CHECK_EQ(dropped, 5u);
  CHECK_EQ(records.size(), Telemetry::kMaxRecords);
  CHECK_EQ(records.front().sequence, 5u);
  CHECK(telemetry.Drain(&dropped).empty());
  CHECK_EQ(dropped, 0u);
}

TEST_CASE("Json") {
  OperationInfo info = Info();
  info.tensor_names = {"a \"quoted\" \\ name", "line\nbreak"};
  info.digest = 0xab;
  AllReduceRecord record;
  record.operation = std::make_shared<const OperationInfo>(info);
  record.step = 4;
  record.sequence = 5;
  record.num_bytes = 6;
  record.num_sent_bytes = 2;
  record.num_omitted_bytes = 4;
  record.cpu_nanos = 11;
  record.enqueued_nanos = 7;
  record.started_nanos = 8;
  record.first_byte_nanos = 9;
  record.finished_nanos = 10;
  CHECK_EQ(TelemetryJson({record}, 1),
           "{\"dropped\":1,\"operations\":{\"00000000000000ab\":{\"plan\":\"1a2b\",\"group\":2,"
           "\"num_threads\":3,\"tensor_names\":[\"a \\\"quoted\\\" \\\\ name\","
           "\"line\\u000abreak\"]}},\"records\":[{\"operation\":\"00000000000000ab\",\"step\":4,"
           "\"sequence\":5,\"num_bytes\":6,\"sent_bytes\":2,\"omitted_bytes\":4,\"cpu_ns\":11,"
           "\"enqueued_ns\":7,\"started_ns\":8,"
           "\"first_byte_ns\":9,\"finished_ns\":10}]}");
  CHECK_EQ(TelemetryJson({}, 0), "{\"dropped\":0,\"operations\":{},\"records\":[]}");
  // The longest numbers there are: nothing is cut off.
  record.step = record.cpu_nanos = record.enqueued_nanos = record.started_nanos = INT64_MIN;
  record.first_byte_nanos = record.finished_nanos = INT64_MIN;
  record.sequence = record.num_bytes = UINT64_MAX;
  record.num_sent_bytes = record.num_omitted_bytes = UINT64_MAX;
  const std::string longest = TelemetryJson({record, record}, 0);
  CHECK_EQ(longest, testing::Contains("\"finished_ns\":-9223372036854775808},{\"operation\""));
  CHECK_EQ(longest, testing::Contains("\"finished_ns\":-9223372036854775808}]}"));
}

}  // namespace
}  // namespace tf_libra::telemetry_test
