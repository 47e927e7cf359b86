// Helpers for tests of collectives: calls of ranks that are threads of one process, and their
// expected results.
#ifndef TF_LIBRA_OPS_LANES_COLLECTIVE_TESTING_H_
#define TF_LIBRA_OPS_LANES_COLLECTIVE_TESTING_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/lanes/collective.h"
#include "ops/lanes/engine_testing.h"
#include "ops/lanes/lane_engine.h"
#include "ops/lanes/testing.h"

namespace tf_libra::collective_testing {

using Ranks = std::vector<int>;

inline testing::Engines MakeEngines(int world_size,
                                    double timeout_seconds = testing::kGenerousSeconds) {
  LaneEngineOptions options;
  options.timeout_seconds = timeout_seconds;
  return testing::MakeEngines(testing::ConnectAll(world_size, 1), options);
}

// Values of mixed sizes, so that sums are rounded.
inline std::vector<float> Values(int rank, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(rank));
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(static_cast<int32_t>(random())) / 3e6f;
  return values;
}

// A collective that a test runs.
struct CallSpec {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Ranks ranks;
  size_t count = 0;
  int root = -1;
  Reduction reduction = Reduction::kSum;
  bool in_place = false;
  std::string name = "x";
};

// One rank's call: its memory, and its end.
struct Call {
  Call(const CallSpec& called, int rank) : spec(called), input(Values(rank, called.count)) {
    size_t count = spec.count;
    if (spec.kind == CollectiveKind::kAllGather) count *= spec.ranks.size();
    if (spec.kind == CollectiveKind::kReduceScatter) count /= spec.ranks.size();
    if (!spec.in_place) output.assign(count, -1);
  }

  void Start(LaneEngine* engine) {
    CollectiveRequest request;
    request.kind = spec.kind;
    request.ranks = spec.ranks;
    request.root = spec.root;
    request.name = spec.name;
    request.content = "float [" + std::to_string(spec.count) + "]";
    request.reduction = spec.reduction;
    request.input = reinterpret_cast<const char*>(input.data());
    request.output = reinterpret_cast<char*>(result().data());
    request.num_bytes = 4 * spec.count;
    request.done = [this](const Status& status) {
      CHECK_EQ(times_done.fetch_add(1), 0);
      end.set_value(status);
    };
    engine->Run(std::move(request));
  }

  Status Wait() {
    auto future = end.get_future();
    const auto wait = std::chrono::duration<double>(2 * testing::kGenerousSeconds);
    const bool ended = future.wait_for(wait) == std::future_status::ready;
    CHECK(ended);
    return ended ? future.get() : Status();
  }

  std::vector<float>& result() { return spec.in_place ? input : output; }

  const CallSpec spec;
  std::vector<float> input, output;
  std::promise<Status> end;
  std::atomic<int> times_done{0};
};

inline std::vector<float> Sum(const CallSpec& spec) {
  std::vector<std::vector<float>> inputs;
  std::vector<const void*> pointers;
  for (const int rank : spec.ranks) inputs.push_back(Values(rank, spec.count));
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<float> sum(spec.count);
  ReduceBlock(ElementType::kFloat32, spec.reduction, pointers, spec.count, sum.data());
  return sum;
}

inline std::vector<float> Expected(const CallSpec& spec, int rank) {
  const size_t own = std::find(spec.ranks.begin(), spec.ranks.end(), rank) - spec.ranks.begin();
  std::vector<float> all;
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
      return Sum(spec);
    case CollectiveKind::kReduceScatter: {
      const std::vector<float> sum = Sum(spec);
      const size_t part = spec.count / spec.ranks.size();
      return {sum.begin() + own * part, sum.begin() + (own + 1) * part};
    }
    case CollectiveKind::kAllGather:
      for (const int one : spec.ranks) {
        const std::vector<float> values = Values(one, spec.count);
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    case CollectiveKind::kBroadcast:
      return Values(spec.root, spec.count);
    case CollectiveKind::kReduce:
      break;
  }
  return rank == spec.root ? Sum(spec) : std::vector<float>(spec.count, 0);
}

inline void CheckCall(Call* call, int rank) {
  CHECK_EQ(call->Wait(), testing::IsOk());
  const std::vector<float> expected = Expected(call->spec, rank);
  const std::vector<float>& result = call->result();
  CHECK_EQ(result.size(), expected.size());
  const bool same =
      result.size() == expected.size() &&
      (expected.empty() || std::memcmp(result.data(), expected.data(), 4 * expected.size()) == 0);
  CHECK(same);
  if (!same) std::cerr << CollectiveName(call->spec.kind) << " of " << call->spec.count << "\n";
}

}  // namespace tf_libra::collective_testing

#endif  // TF_LIBRA_OPS_LANES_COLLECTIVE_TESTING_H_
