// Blocks of zeros are left out of tensors of every format: rounded, with error feedback, of one
// pattern, and of sizes at the edges of blocks.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ops/lanes/engine_testing.h"
#include "ops/lanes/hosts_testing.h"
#include "ops/lanes/shared_memory.h"
#include "ops/lanes/testing.h"
#include "ops/lanes/zero_blocks.h"

namespace tf_libra::zero_blocks_formats_test {
namespace {

using testing::Operation;

using Bytes = std::vector<char>;

// An element type, and what its tensors are rounded to between ranks.
struct Format {
  ElementType type;
  std::optional<ElementType> wire_type = std::nullopt;
};
constexpr Format kFormats[] = {
    {ElementType::kFloat16},
    {ElementType::kBFloat16},
    {ElementType::kFloat32},
    {ElementType::kFloat64},
    {ElementType::kFloat32, ElementType::kFloat16},
    {ElementType::kFloat32, ElementType::kBFloat16},
};

Operation Reducing(Format format, std::vector<size_t> counts) {
  Operation operation;
  operation.type = format.type;
  operation.wire_type = format.wire_type;
  operation.counts = std::move(counts);
  return operation;
}

// Gradients between runs of zeros: of this rank, and of all.
Bytes WithZeros(const Operation& operation, int rank) {
  Bytes values = testing::Gradients(operation, rank, /*seed=*/0);
  const size_t size = ElementSize(operation.type);
  for (size_t i = 0; i < operation.num_elements(); ++i) {
    const bool is_zero = i / 1500 % 2 == 1 || i / 10'000 % 3 == 1 || (i / 400 + rank) % 3 == 0;
    if (is_zero) std::fill_n(&values[i * size], size, '\0');
  }
  return values;
}

// All-reduces `values` in place, with error feedback if there is one.
Status AllReduce(LaneEngine* engine, const Operation& operation, Bytes* values,
                 ErrorFeedback* feedback = nullptr) {
  auto info = std::make_shared<OperationInfo>(*operation.Info());
  info->error_feedback = feedback != nullptr;
  info->ComputeDigest();
  AllReduceRequest request;
  request.element_type = operation.type;
  char* at = values->data();
  for (const size_t count : operation.counts) {
    request.tensors.push_back({at, at, count * ElementSize(operation.type)});
    at += request.tensors.back().num_bytes;
  }
  if (feedback != nullptr) request.errors = feedback->Of(*info, request.tensors);
  request.operation = std::move(info);
  std::promise<Status> end;
  request.done = [&end](const Status& status) { end.set_value(status); };
  engine->AllReduce(std::move(request));
  return end.get_future().get();
}

// Values and errors after two steps. Returns the bytes that all ranks have left out.
uint64_t RunSteps(const testing::Engines& engines, const Operation& operation, bool omits_zeros,
                  std::vector<Bytes>* values, std::vector<std::vector<float>>* errors) {
  const int world_size = static_cast<int>(engines.size());
  std::vector<ErrorFeedback> feedback(world_size);
  std::atomic<uint64_t> num_omitted{0};
  values->resize(world_size);
  errors->resize(world_size);
  testing::OnEveryRank(world_size, [&](int rank) {
    LaneEngine* const engine = engines[rank].get();
    engine->SetOmitsZeros(omits_zeros);
    for (int step = 0; step < 2; ++step) {
      (*values)[rank] = WithZeros(operation, rank);
      CHECK_EQ(AllReduce(engine, operation, &(*values)[rank], &feedback[rank]), testing::IsOk());
    }
    (*errors)[rank] = feedback[rank].Copy("").at(operation.name);
    uint64_t num_dropped = 0;
    for (const AllReduceRecord& record : engine->telemetry()->Drain(&num_dropped)) {
      num_omitted += record.num_omitted_bytes;
    }
  });
  return num_omitted;
}

// Values and rounding errors are those that come without leaving anything out.
void CheckErrorFeedback(std::vector<Mesh> meshes) {
  const testing::Engines engines = testing::MakeEngines(std::move(meshes));
  for (const ElementType wire_type : {ElementType::kFloat16, ElementType::kBFloat16}) {
    Operation operation = Reducing({ElementType::kFloat32, wire_type}, {100'001});
    operation.num_threads = 2;
    std::vector<Bytes> dense, sparse;
    std::vector<std::vector<float>> dense_errors, sparse_errors;
    CHECK_EQ(RunSteps(engines, operation, false, &dense, &dense_errors), 0u);
    CHECK(RunSteps(engines, operation, true, &sparse, &sparse_errors) > 0);
    for (size_t rank = 0; rank < engines.size(); ++rank) {
      CHECK(dense[rank] == dense[0]);
      CHECK(sparse[rank] == dense[0]);
      CHECK(sparse_errors[rank] == dense_errors[rank]);
      CHECK(std::count(dense_errors[rank].begin(), dense_errors[rank].end(), 0.0f) < 90'000);
    }
  }
}

TEST_CASE("RoundedWithErrorFeedback") {
  testing::OverAll();
  CheckErrorFeedback(testing::ConnectAll(3, 2));
}

TEST_CASE("RoundedWithErrorFeedbackInTwoLevels") {
  CheckErrorFeedback(testing::ConnectHosts(testing::Hosts(2, 2), 2));
}

uint64_t InfinityOf(ElementType type) {
  constexpr uint64_t kInfinities[] = {0x7c00, 0x7f80, 0x7f800000, 0x7ff0000000000000};
  return kInfinities[static_cast<size_t>(type)];
}

struct Pattern {
  uint64_t first, others;  // elements of rank 0, and of other ranks
  uint64_t reduced;        // any NaN stands for all of them
};

// Tensors of zeros, of negative zeros, of both, and of NaN on all ranks or on one.
std::vector<Pattern> PatternsOf(ElementType type) {
  const uint64_t nan = InfinityOf(type) | (InfinityOf(type) >> 1);
  const uint64_t negative = uint64_t{1} << (8 * ElementSize(type) - 1);
  return {{0, 0, 0},        {negative, negative, negative},
          {negative, 0, 0}, {0, negative, 0},
          {nan, nan, nan},  {nan, 0, nan},
          {0, nan, nan}};
}

bool IsReduced(ElementType type, uint64_t value, uint64_t expected) {
  const uint64_t negative = uint64_t{1} << (8 * ElementSize(type) - 1);
  const bool is_nan = (value & (negative - 1)) > InfinityOf(type);
  return expected > InfinityOf(type) && expected != negative ? is_nan : value == expected;
}

TEST_CASE("TensorsOfOnePattern") {
  testing::OverAll();
  constexpr size_t kCount = 50'001;
  for (const int world_size : {1, 3}) {
    const testing::Engines engines = testing::MakeEngines(testing::ConnectAll(world_size, 1));
    for (const Format& format : kFormats) {
      const size_t size = ElementSize(format.type);
      for (const Pattern& pattern : PatternsOf(format.type)) {
        testing::OnEveryRank(world_size, [&](int rank) {
          const uint64_t own = rank == 0 ? pattern.first : pattern.others;
          const uint64_t expected = world_size == 1 ? pattern.first : pattern.reduced;
          Bytes values(kCount * size);
          for (size_t i = 0; i < kCount; ++i) std::memcpy(&values[i * size], &own, size);
          CHECK_EQ(AllReduce(engines[rank].get(), Reducing(format, {kCount}), &values),
                   testing::IsOk());
          size_t num_wrong = 0;
          for (size_t i = 0; i < kCount; ++i) {
            uint64_t value = 0;
            std::memcpy(&value, &values[i * size], size);
            num_wrong += !IsReduced(format.type, value, expected);
          }
          CHECK_EQ(num_wrong, 0u);
        });
      }
    }
  }
}

// Shares of ranks, and tensors, of as many bytes as a block, on a wire or in memory, or as a
// segment, and of an element more or less.
std::vector<Operation> AtEdges(int world_size) {
  std::vector<Operation> operations;
  for (const Format& format : kFormats) {
    if (format.wire_type) continue;
    for (const size_t edge :
         {kZeroBlockBytes, kMarkedBlockBytes, kLeastSegmentedBytes, kMixedSegmentBytes}) {
      const size_t count = edge / ElementSize(format.type);
      for (const size_t share : {count - 1, count, count + 1}) {
        operations.push_back(Reducing(format, {share, (world_size - 1) * share}));
      }
    }
  }
  return operations;
}

TEST_CASE("SizesAtTheEdgesOfBlocks") {
  testing::OverAll();
  constexpr int kWorld = 3;
  const testing::Engines engines = testing::MakeEngines(testing::ConnectAll(kWorld, 1));
  for (const Operation& operation : AtEdges(kWorld)) {
    std::vector<Bytes> inputs;
    std::vector<const void*> pointers;
    for (int rank = 0; rank < kWorld; ++rank) inputs.push_back(WithZeros(operation, rank));
    for (const Bytes& input : inputs) pointers.push_back(input.data());
    Bytes expected(inputs[0].size());
    ReduceBlock(operation.type, operation.reduction, pointers, operation.num_elements(),
                expected.data());
    testing::OnEveryRank(kWorld, [&](int rank) {
      Bytes values = inputs[rank];
      CHECK_EQ(AllReduce(engines[rank].get(), operation, &values), testing::IsOk());
      CHECK(values == expected);
    });
  }
}

}  // namespace
}  // namespace tf_libra::zero_blocks_formats_test
