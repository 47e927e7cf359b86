#include "ops/row_parts.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/testing/tensorflow.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

Tensor Ends(const std::vector<int32_t>& values) {
  Tensor ends(tensorflow::DT_INT32, TensorShape({static_cast<int64_t>(values.size())}));
  for (size_t i = 0; i < values.size(); ++i) ends.vec<int32_t>()(i) = values[i];
  return ends;
}

DOCTEST_TEST_CASE("PartsFollowEachOther") {
  RowParts rows;
  const Tensor own(tensorflow::DT_FLOAT, TensorShape({2, 3, 5}));
  DOCTEST_REQUIRE(FindRowParts(own, Ends({4, 6, 6}), 3, 1, &rows).ok());
  DOCTEST_CHECK_EQ(rows.shape.DebugString(), "[6,3,5]");
  const std::vector<size_t> ends = {0, 240, 360, 360};
  for (size_t i = 0; i < 3; ++i) {
    DOCTEST_CHECK_EQ(rows.parts[i].begin, ends[i]);
    DOCTEST_CHECK_EQ(rows.parts[i].end, ends[i + 1]);
  }
}

DOCTEST_TEST_CASE("RowsWithoutElements") {
  for (const TensorShape& shape : {TensorShape({0}), TensorShape({0, 4}), TensorShape({2, 0})}) {
    const Tensor own(tensorflow::DT_DOUBLE, shape);
    const int count = static_cast<int>(shape.dim_size(0));
    RowParts rows;
    DOCTEST_CHECK(FindRowParts(own, Ends({count, 2 * count}), 2, 1, &rows).ok());
    Tensor all(tensorflow::DT_DOUBLE, rows.shape);
    PlaceOwnRows(own, rows.parts[1], &all);
  }
}

// Whatever ends another rank has caused are rejected, or cover the rows exactly.
DOCTEST_TEST_CASE("EndsOfAnyKindLeadToNoRowOutside") {
  std::mt19937 random(3);
  int num_valid = 0;
  for (int round = 0; round < 20000; ++round) {
    const int world_size = 1 + random() % 4;
    const int rank = random() % world_size;
    std::vector<int32_t> ends;
    for (int i = 0; i < world_size; ++i) {
      const int32_t last = ends.empty() ? 0 : ends.back();
      ends.push_back(random() % 8 == 0 ? static_cast<int32_t>(random()) : last + random() % 3);
    }
    if (random() % 16 == 0) ends.resize(random() % 6);
    const Tensor own(tensorflow::DT_HALF, TensorShape({static_cast<int64_t>(random() % 3), 2}));
    RowParts rows;
    if (!FindRowParts(own, Ends(ends), world_size, rank, &rows).ok()) continue;
    ++num_valid;
    size_t at = 0;
    for (const ByteRange& part : rows.parts) {
      DOCTEST_CHECK_EQ(part.begin, at);
      DOCTEST_CHECK(part.end >= part.begin);
      at = part.end;
    }
    DOCTEST_CHECK_EQ(at, static_cast<size_t>(rows.shape.num_elements()) * 2);
    DOCTEST_CHECK_EQ(rows.parts[rank].size(), own.TotalBytes());
  }
  DOCTEST_CHECK(num_valid > 1000);
}

DOCTEST_TEST_CASE("RowsBeyondTheMemoryAreRejected") {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  RowParts rows;
  const Tensor narrow(tensorflow::DT_FLOAT, TensorShape({0, 1}));
  const Tensor wide(tensorflow::DT_FLOAT, TensorShape({0, 1 << 20}));
  const Tensor empty(tensorflow::DT_FLOAT, TensorShape({0, 0}));
  DOCTEST_CHECK(FindRowParts(narrow, Ends({0, 1 << 20}), 2, 0, &rows).ok());
  DOCTEST_CHECK(absl::IsInvalidArgument(FindRowParts(wide, Ends({0, kMost}), 2, 0, &rows)));
  DOCTEST_CHECK(FindRowParts(empty, Ends({0, kMost}), 2, 0, &rows).ok());
}

DOCTEST_TEST_CASE("OwnRowsAreCopiedToTheirPlace") {
  Tensor own(tensorflow::DT_FLOAT, TensorShape({2}));
  own.vec<float>()(0) = 1;
  own.vec<float>()(1) = -7;
  Tensor all(tensorflow::DT_FLOAT, TensorShape({4}));
  all.vec<float>().setConstant(9);
  PlaceOwnRows(own, {4, 12}, &all);
  const std::vector<float> expected = {9, 1, -7, 9};
  for (int i = 0; i < 4; ++i) DOCTEST_CHECK_EQ(all.vec<float>()(i), expected[i]);
}

DOCTEST_TEST_CASE("WrongEndsAreNamed") {
  RowParts rows;
  const Tensor own(tensorflow::DT_FLOAT, TensorShape({2, 3}));
  const absl::Status status = FindRowParts(own, Ends({3, 4}), 2, 1, &rows);
  DOCTEST_CHECK(absl::IsInvalidArgument(status));
  const std::string message(status.message());
  DOCTEST_CHECK(message.find("ends") != std::string::npos);
  DOCTEST_CHECK(message.find("[2,3]") != std::string::npos);
  const Tensor scalar(tensorflow::DT_FLOAT, TensorShape({}));
  DOCTEST_CHECK(!FindRowParts(scalar, Ends({1}), 1, 0, &rows).ok());
}

}  // namespace
}  // namespace tf_libra
