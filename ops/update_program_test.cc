#include "ops/update_program.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/testing/tensorflow.h"

namespace tf_libra {
namespace {

std::vector<int> Triples(const std::vector<UpdateInstruction>& instructions) {
  std::vector<int> triples;
  for (const UpdateInstruction& next : instructions) {
    triples.insert(triples.end(), {static_cast<int>(next.op), next.first, next.second});
  }
  return triples;
}

std::vector<float> Random(size_t size, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(size);
  for (float& number : numbers) number = normal(generator);
  return numbers;
}

// Two slots, a weight, a gradient and two factors; in both orders of the scalars.
DOCTEST_TEST_CASE("ElementsAreUpdatedAsByLoops") {
  const std::vector<UpdateInstruction> adam = {
      {UpdateOp::kRead, 0, 0},             // 3: m
      {UpdateOp::kSubtract, 0, 3},         // 4
      {UpdateOp::kMultiply, 4, 1},         // 5
      {UpdateOp::kAssignAdd, 0, 5},        // 6
      {UpdateOp::kSquare, 0, 0},           // 7
      {UpdateOp::kRead, 1, 0},             // 8: v
      {UpdateOp::kSubtract, 7, 8},         // 9
      {UpdateOp::kMultiply, 9, 2},         // 10
      {UpdateOp::kAssignAdd, 1, 10},       // 11
      {UpdateOp::kRead, 0, 0},             // 12: m
      {UpdateOp::kRead, 1, 0},             // 13: v
      {UpdateOp::kSqrt, 13, 0},            // 14
      {UpdateOp::kAdd, 14, 2},             // 15
      {UpdateOp::kNegate, 12, 0},          // 16
      {UpdateOp::kDivide, 16, 15},         // 17
      {UpdateOp::kAssignSubtract, 2, 17},  // 18
  };
  UpdateProgram program;
  DOCTEST_REQUIRE(UpdateProgram::Parse(Triples(adam), 3, 3, &program).ok());
  for (const size_t size : {0, 1, 7, 511, 512, 513, 4000}) {
    const std::vector<float> gradient = Random(size, 1);
    std::vector<float> m = Random(size, 2), v = Random(size, 3), w = Random(size, 4);
    for (float& number : v) number *= number;
    std::vector<float> new_m = m, new_v = v, new_w = w;
    const float factor = 0.1f, other = 0.001f;
    for (size_t i = 0; i < size; ++i) {
      new_m[i] = new_m[i] + (gradient[i] - new_m[i]) * factor;
      new_v[i] = new_v[i] + (gradient[i] * gradient[i] - new_v[i]) * other;
      new_w[i] = new_w[i] - -new_m[i] / (std::sqrt(new_v[i]) + other);
    }
    const std::vector<UpdateValue> values = {
        {gradient.data(), false}, {&factor, true}, {&other, true}};
    const size_t half = size / 3;
    const std::vector<float> before = w;
    const std::vector<float> old_m = m;
    std::vector<float> backup(size), moved_m(size);
    const std::vector<UpdateCopy> copies = {{m.data(), moved_m.data()}, {w.data(), backup.data()}};
    program.Run({moved_m.data(), v.data(), w.data()}, values, 0, half, copies);
    program.Run({moved_m.data(), v.data(), w.data()}, values, half, size, copies);
    DOCTEST_CHECK((backup == before));
    DOCTEST_CHECK((m == old_m));
    const size_t num_bytes = size * sizeof(float);
    DOCTEST_CHECK_EQ(std::memcmp(moved_m.data(), new_m.data(), num_bytes), 0);
    DOCTEST_CHECK_EQ(std::memcmp(v.data(), new_v.data(), num_bytes), 0);
    DOCTEST_CHECK_EQ(std::memcmp(w.data(), new_w.data(), num_bytes), 0);
  }
}

// A value that was read before a variable changes stays what it was.
DOCTEST_TEST_CASE("ReadsKeepTheirValue") {
  UpdateProgram program;
  DOCTEST_REQUIRE(
      UpdateProgram::Parse(
          Triples({{UpdateOp::kRead, 0, 0}, {UpdateOp::kAssign, 0, 0}, {UpdateOp::kAssign, 1, 1}}),
          2, 1, &program)
          .ok());
  std::vector<float> first = {1, 2}, second = {3, 4};
  const float value = 5;
  program.Run({first.data(), second.data()}, {{&value, true}}, 0, 2);
  DOCTEST_CHECK((first == std::vector<float>{5, 5}));
  DOCTEST_CHECK((second == std::vector<float>{1, 2}));
}

DOCTEST_TEST_CASE("SpecialNumbersAreUpdatedAsByLoops") {
  const float nan = std::nanf(""), infinity = INFINITY;
  const std::vector<float> values = {0.0f, -0.0f, infinity, -infinity, nan, 1e-42f, -3.0f};
  UpdateProgram program;
  DOCTEST_REQUIRE(UpdateProgram::Parse(
                      Triples({{UpdateOp::kSqrt, 0, 0}, {UpdateOp::kAssign, 0, 1}}), 1, 1, &program)
                      .ok());
  std::vector<float> roots(values.size());
  program.Run({roots.data()}, {{values.data(), false}}, 0, values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const float root = std::sqrt(values[i]);
    DOCTEST_CHECK_EQ(std::isnan(roots[i]), std::isnan(root));
    if (!std::isnan(root)) DOCTEST_CHECK_EQ(std::memcmp(&roots[i], &root, sizeof(root)), 0);
  }
}

DOCTEST_TEST_CASE("OperandsThatAreNoneAreRejected") {
  UpdateProgram program;
  const auto rejects = [&](const std::vector<int>& triples) {
    return absl::IsInvalidArgument(UpdateProgram::Parse(triples, 1, 1, &program));
  };
  const int read = static_cast<int>(UpdateOp::kRead);
  const int assign = static_cast<int>(UpdateOp::kAssign);
  const int add = static_cast<int>(UpdateOp::kAdd);
  DOCTEST_CHECK(!rejects({assign, 0, 0}));
  DOCTEST_CHECK(!rejects({}));
  DOCTEST_CHECK(rejects({assign, 0}));
  DOCTEST_CHECK(rejects({-1, 0, 0}));
  DOCTEST_CHECK(rejects({kNumUpdateOps, 0, 0}));
  DOCTEST_CHECK(rejects({read, 1, 0}));
  DOCTEST_CHECK(rejects({read, -1, 0}));
  DOCTEST_CHECK(rejects({assign, 1, 0}));
  DOCTEST_CHECK(rejects({assign, 0, 1}));
  DOCTEST_CHECK(rejects({add, 0, 1}));
  DOCTEST_CHECK(rejects({add, -1, 0}));
  // An assignment has no result.
  DOCTEST_CHECK(rejects({assign, 0, 0, add, 1, 0}));
}

}  // namespace
}  // namespace tf_libra
