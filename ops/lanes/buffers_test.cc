#include "ops/lanes/buffers.h"

#include <random>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::buffers_test {
namespace {

// Parts lie end to end, cover the range, hold whole elements, and differ by one element at most.
TEST_CASE("PartsCoverTheRange") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20000; ++round) {
    const size_t element_size = size_t{1} << (1 + random() % 3);
    const size_t begin = random() % 1000 * element_size;
    // Up to a terabyte: the product of count and index must not overflow.
    const size_t count = random() % (round % 2 == 0 ? 20 : (size_t{1} << 40) / element_size);
    const size_t parts = 1 + random() % 9;
    const ByteRange range{begin, begin + count * element_size};
    size_t at = begin, least = ~size_t{0}, most = 0;
    for (size_t i = 0; i < parts; ++i) {
      const ByteRange part = Part(range, element_size, parts, i);
      CHECK_EQ(part.begin, at);
      CHECK(part.end >= part.begin);
      CHECK_EQ(part.size() % element_size, 0u);
      at = part.end;
      least = std::min(least, part.size());
      most = std::max(most, part.size());
    }
    CHECK_EQ(at, range.end);
    CHECK(most - least <= element_size);
  }
}

struct Tensors {
  std::vector<std::vector<char>> inputs, outputs;
  std::vector<TensorView> views;

  explicit Tensors(const std::vector<size_t>& sizes) : inputs(sizes.size()), outputs(sizes.size()) {
    char next = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (size_t k = 0; k < sizes[i]; ++k) inputs[i].push_back(next++);
      outputs[i].resize(sizes[i]);
      views.push_back({inputs[i].data(), outputs[i].data(), sizes[i]});
    }
  }
};

void CheckRuns(const std::vector<size_t>& sizes, ByteRange range) {
  Tensors tensors(sizes);
  const Buffers buffers(tensors.views);
  size_t at = range.begin;
  buffers.ForEachRun(range, [&](const char* input, char* output, size_t size) {
    CHECK(size > 0);
    for (size_t i = 0; i < size; ++i) {
      CHECK_EQ(static_cast<int>(input[i]), static_cast<int>(static_cast<char>(at + i)));
      output[i] = 1;
    }
    at += size;
    return true;
  });
  CHECK_EQ(at, range.end);
  size_t written = 0;
  for (const auto& output : tensors.outputs) {
    for (const char byte : output) written += static_cast<size_t>(byte);
  }
  CHECK_EQ(written, range.size());
}

TEST_CASE("RunsCoverTheRange") {
  std::mt19937 random(2);
  for (int round = 0; round < 3000; ++round) {
    std::vector<size_t> sizes(random() % 8);
    size_t total = 0;
    for (size_t& size : sizes) total += size = random() % 3 == 0 ? 0 : random() % 40;
    const size_t begin = random() % (total + 1);
    CheckRuns(sizes, {begin, begin + random() % (total - begin + 1)});
  }
}

TEST_CASE("RunsAtBoundaries") {
  CheckRuns({}, {0, 0});
  CheckRuns({0, 0}, {0, 0});
  CheckRuns({4, 4}, {4, 4});
  CheckRuns({4, 4}, {0, 4});
  CheckRuns({4, 4}, {4, 8});
  CheckRuns({4, 0, 0, 4}, {4, 8});
  CheckRuns({0, 4, 0}, {0, 4});
  CheckRuns({0, 4, 0, 4, 0}, {3, 5});
}

TEST_CASE("EmptyTensorsMayHaveNoMemory") {
  char in[4] = {1, 2, 3, 4}, out[4] = {};
  const Buffers buffers({{nullptr, nullptr, 0}, {in, out, 4}, {nullptr, nullptr, 0}});
  CHECK_EQ(buffers.num_bytes(), 4u);
  int runs = 0;
  buffers.ForEachRun({0, 4}, [&](const char* input, char* output, size_t size) {
    CHECK((input == in && output == out && size == 4));
    ++runs;
    return true;
  });
  CHECK_EQ(runs, 1);
}

TEST_CASE("VisitorEndsTheWalk") {
  Tensors tensors({4, 4, 4});
  int runs = 0;
  Buffers(tensors.views).ForEachRun({0, 12}, [&](const char*, char*, size_t) {
    return ++runs < 2;
  });
  CHECK_EQ(runs, 2);
}

}  // namespace
}  // namespace tf_libra::buffers_test
