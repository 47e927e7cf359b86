#include "ops/lanes/wire_format.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/engine_testing.h"
#include "ops/lanes/hosts_testing.h"
#include "ops/lanes/testing.h"

namespace tf_libra::wire_format_test {
namespace {

using testing::Operation;

using Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr ElementType kWireTypes[] = {ElementType::kFloat16, ElementType::kBFloat16};

Operation Rounded(ElementType wire_type, Reduction reduction, size_t count, int num_threads = 1) {
  Operation operation;
  operation.counts = {count / 3, 0, count - count / 3};
  operation.reduction = reduction;
  operation.wire_type = wire_type;
  operation.num_threads = num_threads;
  operation.in_place = num_threads == 2;
  return operation;
}

std::vector<uint16_t> Round(ElementType type, const Floats& values) {
  std::vector<uint16_t> rounded(values.size());
  RoundFromFloat32(type, Reduction::kSum, 1, values.data(), values.size(), rounded.data());
  return rounded;
}

Floats Widen(ElementType type, const std::vector<uint16_t>& rounded) {
  Floats values(rounded.size());
  SumInFloat32(type, {rounded.data()}, rounded.size(), values.data());
  return values;
}

// One level: rounded terms, added in rank order in float32, rounded once.
Floats ReducedOnce(const Operation& operation, const std::vector<Floats>& terms) {
  Floats sum(terms[0].size());
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i] = terms[0][i];
    for (size_t rank = 1; rank < terms.size(); ++rank) sum[i] += terms[rank][i];
    if (operation.reduction == Reduction::kAverage) sum[i] /= static_cast<float>(terms.size());
  }
  return Widen(*operation.wire_type, Round(*operation.wire_type, sum));
}

Floats Gradients(const Operation& operation, int rank) {
  const std::vector<char> bytes = testing::Gradients(operation, rank, /*seed=*/0);
  Floats values(operation.num_elements());
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  // Gradients of that helper reach 700: within float16, as are sums of 18 ranks.
  return values;
}

// Of ranks on these hosts; none: all exchange with all. A rank alone rounds nothing.
Floats Expected(const Operation& operation, const std::vector<int>& hosts, int world_size) {
  if (world_size == 1) return Gradients(operation, 0);
  std::map<int, std::vector<Floats>> rows;  // by first rank
  for (int rank = 0; rank < world_size; ++rank) {
    const Grid grid(rank, world_size, hosts);
    rows[grid.has_rows() ? grid.row()[0] : 0].push_back(
        Widen(*operation.wire_type, Round(*operation.wire_type, Gradients(operation, rank))));
  }
  std::vector<Floats> sums;
  for (const auto& [first, row] : rows) sums.push_back(ReducedOnce(operation, row));
  return sums.size() > 1 ? ReducedOnce(operation, sums) : sums[0];
}

std::vector<char> BytesOf(const Floats& values) {
  std::vector<char> bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// All-reduces of many sizes on all ranks, with the bits of the model on every one.
void CheckAllReduces(std::vector<Mesh> meshes, const std::vector<int>& hosts) {
  const int world_size = static_cast<int>(meshes.size());
  std::vector<std::pair<Operation, std::vector<char>>> operations;
  for (const ElementType wire_type : kWireTypes) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
      // Around a register, a block and a ring of shared memory.
      for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{33},
                                 size_t{65'535}, size_t{65'537}, size_t{300'001}}) {
        if (count > 33 && reduction == Reduction::kSum) continue;
        const int num_threads = count % 2 == 0 ? 1 : 2;
        const Operation operation = Rounded(wire_type, reduction, count, num_threads);
        operations.emplace_back(operation, BytesOf(Expected(operation, hosts, world_size)));
      }
    }
  }
  testing::OnEveryRank(world_size, [&](int rank) {
    const auto engine = testing::MakeEngine(testing::Patient(), std::move(meshes[rank]));
    for (const auto& [operation, expected] : operations) {
      std::vector<char> output;
      CHECK_EQ(testing::AllReduce(engine.get(), operation, /*seed=*/0, &output), testing::IsOk());
      const bool is_equal = output == expected;
      CHECK_MESSAGE(is_equal, operation.num_elements(), ElementName(*operation.wire_type));
    }
  });
}

TEST_CASE("OverEveryTransport") {
  testing::OverAll();
  for (int world_size = 1; world_size <= 5; ++world_size) {
    CheckAllReduces(testing::ConnectAll(world_size, 2), {});
  }
}

TEST_CASE("InTwoLevels") {
  for (const std::vector<int>& hosts : {testing::Hosts(2, 2), testing::Hosts(2, 3, true),
                                        testing::Hosts(4, 2), std::vector<int>{0, 0, 1}}) {
    CheckAllReduces(testing::ConnectHosts(hosts, 2), hosts);
  }
}

// Every rank gives the same value, or only the first one does and others give 1.
Floats ReducedOnTwo(ElementType wire_type, const Floats& first, const Floats& second) {
  std::vector<Floats> values = {first, second};
  auto info = std::make_shared<OperationInfo>();
  info->reduction = Reduction::kSum;
  info->wire_type = wire_type;
  info->tensor_names = {"values"};
  info->ComputeDigest();
  std::vector<Mesh> meshes = testing::ConnectAll(2, 1);
  testing::OnEveryRank(2, [&](int rank) {
    const auto engine = testing::MakeEngine(testing::Patient(), std::move(meshes[rank]));
    AllReduceRequest request;
    request.operation = info;
    request.tensors = {{values[rank].data(), values[rank].data(), 4 * first.size()}};
    std::promise<Status> end;
    request.done = [&end](const Status& status) { end.set_value(status); };
    engine->AllReduce(std::move(request));
    CHECK_EQ(end.get_future().get(), testing::IsOk());
  });
  CHECK_EQ(std::memcmp(values[0].data(), values[1].data(), 4 * first.size()), 0);
  return values[0];
}

TEST_CASE("NumbersThatAreNone") {
  for (const ElementType wire_type : kWireTypes) {
    const Floats sums =
        ReducedOnTwo(wire_type, {std::nanf(""), kInfinity, -kInfinity, kInfinity, -0.0f},
                     {1.0f, 1.0f, 1.0f, -kInfinity, -0.0f});
    CHECK(std::isnan(sums[0]));
    CHECK_EQ(sums[1], kInfinity);
    CHECK_EQ(sums[2], -kInfinity);
    CHECK(std::isnan(sums[3]));
    CHECK(std::signbit(sums[4]));
  }
}

TEST_CASE("RangesOfTheWireTypes") {
  const float denormal = std::ldexp(1.0f, -130);
  const Floats in_float16 = ReducedOnTwo(ElementType::kFloat16,
                                         {70000.0f, -70000.0f, 40000.0f, std::ldexp(1.0f, -24),
                                          std::ldexp(1.0f, -26), denormal, 2049.0f},
                                         Floats(7, 0.0f));
  CHECK(in_float16 ==
        Floats{kInfinity, -kInfinity, 40000.0f, std::ldexp(1.0f, -24), 0.0f, 0.0f, 2048.0f});
  const Floats in_bfloat16 =
      ReducedOnTwo(ElementType::kBFloat16, {70000.0f, 3e38f, denormal, 257.0f, 259.0f},
                   {0.0f, 3e38f, 0.0f, 0.0f, 0.0f});
  CHECK(in_bfloat16 == Floats{70144.0f, kInfinity, denormal, 256.0f, 260.0f});
}

TEST_CASE("OtherTypesTravelAsTheyAre") {
  for (const ElementType type : {ElementType::kFloat64, ElementType::kFloat16}) {
    Operation operation = Rounded(ElementType::kBFloat16, Reduction::kAverage, 1000);
    operation.type = type;
    const std::vector<char> expected = testing::Expected(operation, 2, /*seed=*/0);
    std::vector<Mesh> meshes = testing::ConnectAll(2, 1);
    testing::OnEveryRank(2, [&](int rank) {
      const auto engine = testing::MakeEngine(testing::Patient(), std::move(meshes[rank]));
      std::vector<char> output;
      CHECK_EQ(testing::AllReduce(engine.get(), operation, /*seed=*/0, &output), testing::IsOk());
      CHECK(output == expected);
    });
  }
}

TEST_CASE("RanksThatDifferInTheWireTypeSaySo") {
  std::vector<Mesh> meshes = testing::ConnectAll(2, 1);
  testing::OnEveryRank(2, [&](int rank) {
    const auto engine = testing::MakeEngine(testing::Patient(), std::move(meshes[rank]));
    Operation operation = Rounded(ElementType::kBFloat16, Reduction::kAverage, 100);
    if (rank == 1) operation.wire_type = std::nullopt;
    CHECK_EQ(testing::AllReduce(engine.get(), operation),
             testing::StatusIs(StatusCode::kFailedPrecondition, "wire_dtype"));
  });
}

// Multiples of 2^-10 below 32: all sums of them are exact in float32.
Floats ExactGradients(size_t count, int rank, int step) {
  std::mt19937 random(static_cast<uint32_t>(100 * step + rank));
  Floats values(count);
  for (float& value : values) {
    value = static_cast<float>(static_cast<int32_t>(random() % 65'536) - 32'768) / 1024;
  }
  return values;
}

// Steps with error feedback on ranks whose number is a power of two. What is received and what
// waits in errors is all that was given, on ranks with equal bits.
void CheckNothingIsLost(std::vector<Mesh> meshes, ElementType wire_type, Reduction reduction) {
  constexpr int kSteps = 6;
  constexpr size_t kCounts[] = {3001, 0, 1, 9000};
  constexpr size_t kCount = 12'002;
  const int world_size = static_cast<int>(meshes.size());
  const float num_terms = reduction == Reduction::kAverage ? static_cast<float>(world_size) : 1;
  auto info = std::make_shared<OperationInfo>();
  info->reduction = reduction;
  info->wire_type = wire_type;
  info->error_feedback = true;
  info->num_threads = 2;
  info->tensor_names = {"a", "b", "c", "d"};
  info->ComputeDigest();
  std::vector<Floats> received(world_size, Floats(kCount)), left(world_size);
  testing::OnEveryRank(world_size, [&](int rank) {
    ErrorFeedback feedback;
    const auto engine = testing::MakeEngine(testing::Patient(), std::move(meshes[rank]));
    for (int step = 0; step < kSteps; ++step) {
      Floats values = ExactGradients(kCount, rank, step);
      AllReduceRequest request;
      request.operation = info;
      float* next = values.data();
      for (const size_t count : kCounts) {
        request.tensors.push_back({next, next, count * sizeof(float)});
        next += count;
      }
      request.errors = feedback.Of(*info, request.tensors);
      std::promise<Status> end;
      request.done = [&end](const Status& status) { end.set_value(status); };
      engine->AllReduce(std::move(request));
      CHECK_EQ(end.get_future().get(), testing::IsOk());
      for (size_t i = 0; i < kCount; ++i) received[rank][i] += num_terms * values[i];
    }
    for (const auto& [name, errors] : feedback.Copy("")) {
      left[rank].insert(left[rank].end(), errors.begin(), errors.end());
    }
  });
  Floats total = received[0], delivered(kCount);
  size_t num_errors = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    CHECK(received[rank] == received[0]);
    CHECK_EQ(left[rank].size(), kCount);
    for (size_t i = 0; i < kCount; ++i) {
      total[i] += left[rank][i];
      num_errors += left[rank][i] != 0;
      // Of an element, and of a sum in one or two levels.
      CHECK(std::fabs(left[rank][i]) < 64.0f * static_cast<float>(world_size) / 256);
      for (int step = 0; rank == 0 && step < kSteps; ++step) {
        for (int other = 0; other < world_size && i == 0; ++other) {
          const Floats values = ExactGradients(kCount, other, step);
          for (size_t j = 0; j < kCount; ++j) delivered[j] += values[j];
        }
      }
    }
  }
  CHECK(total == delivered);
  CHECK(num_errors > kCount);
}

TEST_CASE("ErrorFeedbackLosesNothing") {
  for (const ElementType wire_type : kWireTypes) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
      CheckNothingIsLost(testing::ConnectAll(2, 2), wire_type, reduction);
      CheckNothingIsLost(testing::ConnectAll(4, 2), wire_type, reduction);
      CheckNothingIsLost(testing::ConnectHosts(testing::Hosts(2, 2), 2), wire_type, reduction);
    }
  }
}

TEST_CASE("WhatIsNotFiniteLeavesNoError") {
  auto info = std::make_shared<OperationInfo>();
  info->reduction = Reduction::kSum;
  info->wire_type = ElementType::kFloat16;
  info->error_feedback = true;
  info->tensor_names = {"values"};
  info->ComputeDigest();
  std::vector<Mesh> meshes = testing::ConnectAll(2, 1);
  testing::OnEveryRank(2, [&](int rank) {
    ErrorFeedback feedback;
    const auto engine = testing::MakeEngine(testing::Patient(), std::move(meshes[rank]));
    for (int step = 0; step < 2; ++step) {
      Floats values = {std::nanf(""), kInfinity, 70000.0f, 40000.0f, 2049.0f};
      if (step == 1) values = {1, 2, 3, 4, 0};
      AllReduceRequest request;
      request.operation = info;
      request.tensors = {{values.data(), values.data(), values.size() * sizeof(float)}};
      request.errors = feedback.Of(*info, request.tensors);
      std::promise<Status> end;
      request.done = [&end](const Status& status) { end.set_value(status); };
      engine->AllReduce(std::move(request));
      CHECK_EQ(end.get_future().get(), testing::IsOk());
      if (step == 1) CHECK(values == Floats{2, 4, 6, 8, 2});
    }
    CHECK(feedback.Copy("").at("values") == Floats(5));
  });
}

TEST_CASE("RoundingTakesTime") {
  for (const ElementType wire_type : kWireTypes) {
    for (const bool error_feedback : {false, true}) {
      CHECK(RoundingSeconds(wire_type, error_feedback) > 0);
      CHECK(RoundingSeconds(wire_type, error_feedback) < 1e-3);
    }
    CHECK(WireTypeOf(ElementName(wire_type)) == wire_type);
  }
  CHECK(!WireTypeOf("float32"));
}

}  // namespace
}  // namespace tf_libra::wire_format_test
