#include "ops/lanes/element.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::element_test {
namespace {

// Counts around the tile of 1024 elements, and around the widths of vector registers.
const size_t kCounts[] = {0, 1, 3, 7, 8, 15, 17, 64, 1000, 1023, 1024, 1025, 2048, 3001};

// A half, written from its definition: sign, exponent, and `mantissa_bits` of fraction.
struct HalfFormat {
  ElementType type;
  int mantissa_bits;
  int min_exponent;  // of the smallest normal number
  uint16_t infinity;

  bool IsNan(uint16_t bits) const { return (bits & 0x7fff) > infinity; }

  double Widen(uint16_t bits) const {
    const int exponent = (bits & 0x7fff) >> mantissa_bits;
    const int fraction = bits & ((1 << mantissa_bits) - 1);
    double value;
    if (IsNan(bits)) {
      value = std::nan("");
    } else if ((bits & 0x7fff) == infinity) {
      value = std::numeric_limits<double>::infinity();
    } else if (exponent == 0) {
      value = std::ldexp(fraction, min_exponent - mantissa_bits);
    } else {
      value =
          std::ldexp(fraction + (1 << mantissa_bits), min_exponent + exponent - 1 - mantissa_bits);
    }
    return bits & 0x8000 ? -value : value;
  }

  // The nearest half, the even one of two; std::nearbyint does just that to integers.
  uint16_t Narrow(double value) const {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    if (std::isnan(value)) return infinity + 1;
    if (std::isinf(value)) return sign | infinity;
    const int exponent =
        magnitude == 0 ? min_exponent : std::max(std::ilogb(magnitude), min_exponent);
    const auto steps =
        static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent)));
    // Rounding up to the next power of two carries into the exponent by itself.
    const uint32_t bits = steps + (static_cast<uint32_t>(exponent - min_exponent) << mantissa_bits);
    return sign | static_cast<uint16_t>(std::min<uint32_t>(bits, infinity));
  }
};

const HalfFormat kHalves[] = {{ElementType::kFloat16, 10, -14, 0x7c00},
                              {ElementType::kBFloat16, 7, -126, 0x7f80}};

template <typename T>
std::vector<const void*> Pointers(const std::vector<std::vector<T>>& inputs) {
  std::vector<const void*> pointers;
  for (const std::vector<T>& input : inputs) pointers.push_back(input.data());
  return pointers;
}

template <typename T>
std::vector<T> Reduce(ElementType type, Reduction reduction,
                      const std::vector<std::vector<T>>& inputs) {
  std::vector<T> out(inputs[0].size(), T(77));
  ReduceBlock(type, reduction, Pointers(inputs), out.size(), out.data());
  return out;
}

template <typename T>
void CheckBits(const T& left, const T& right, int line) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  Bits l, r;
  std::memcpy(&l, &left, sizeof(T));
  std::memcpy(&r, &right, sizeof(T));
  if (l != r) ADD_FAIL_CHECK_AT(__FILE__, line, "bits ", l, " and ", r);
}

template <typename T>
void NativeSums(ElementType type, double tolerance) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
    for (int world_size = 1; world_size <= 5; ++world_size) {
      for (const size_t count : kCounts) {
        std::vector<std::vector<T>> inputs(world_size, std::vector<T>(count));
        for (auto& input : inputs) {
          for (T& value : input) value = static_cast<T>(normal(random) * 1e3);
        }
        const std::vector<T> out = Reduce(type, reduction, inputs);
        for (size_t i = 0; i < count; ++i) {
          T in_order = inputs[0][i];
          long double exact = inputs[0][i];
          double magnitude = std::fabs(inputs[0][i]);
          for (int rank = 1; rank < world_size; ++rank) {
            in_order += inputs[rank][i];
            exact += inputs[rank][i];
            magnitude += std::fabs(inputs[rank][i]);
          }
          if (reduction == Reduction::kAverage) {
            in_order /= static_cast<T>(world_size);
            exact /= world_size;
          }
          CheckBits(out[i], in_order, __LINE__);
          CHECK(std::fabs(out[i] - exact) <= tolerance * magnitude);
        }
      }
    }
  }
}

TEST_CASE("Float32Sums") { NativeSums<float>(ElementType::kFloat32, 1e-6); }
TEST_CASE("Float64Sums") { NativeSums<double>(ElementType::kFloat64, 1e-15); }

// Any other order of these three gives something else.
TEST_CASE("RankOrder") {
  const std::vector<std::vector<float>> inputs = {{1e8f}, {-1e8f}, {1.0f}};
  CHECK_EQ(Reduce(ElementType::kFloat32, Reduction::kSum, inputs)[0], 1.0f);
  const std::vector<std::vector<float>> other = {{1.0f}, {1e8f}, {-1e8f}};
  CHECK_EQ(Reduce(ElementType::kFloat32, Reduction::kSum, other)[0], 0.0f);
  const std::vector<std::vector<double>> doubles = {{1e17}, {-1e17}, {1.0}};
  CHECK_EQ(Reduce(ElementType::kFloat64, Reduction::kSum, doubles)[0], 1.0);
  // In float16 itself 2048 + 1 is 2048: only a sum in float32, rounded once, gets to 2050.
  const std::vector<std::vector<uint16_t>> halves = {{0x6800}, {0x3c00}, {0x3c00}};
  CHECK_EQ(Reduce(ElementType::kFloat16, Reduction::kSum, halves)[0], 0x6801);
}

// Every half there is, widened and narrowed again.
TEST_CASE("RoundTripOfAllHalves") {
  for (const HalfFormat& format : kHalves) {
    std::vector<std::vector<uint16_t>> all(1, std::vector<uint16_t>(1 << 16));
    for (size_t i = 0; i < all[0].size(); ++i) all[0][i] = static_cast<uint16_t>(i);
    const std::vector<uint16_t> out = Reduce(format.type, Reduction::kSum, all);
    for (size_t i = 0; i < out.size(); ++i) {
      if (format.IsNan(all[0][i])) {
        CHECK(format.IsNan(out[i]));
      } else {
        CheckBits(out[i], all[0][i], __LINE__);
        CheckBits(format.Narrow(format.Widen(all[0][i])), all[0][i], __LINE__);
      }
    }
  }
}

// Every half next to random others: sums and averages that need rounding, or overflow.
TEST_CASE("HalvesAreRoundedOnce") {
  std::mt19937 random(2);
  for (const HalfFormat& format : kHalves) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
      for (int world_size = 1; world_size <= 4; ++world_size) {
        std::vector<std::vector<uint16_t>> inputs(world_size, std::vector<uint16_t>(1 << 16));
        for (size_t i = 0; i < inputs[0].size(); ++i) {
          inputs[0][i] = static_cast<uint16_t>(i);
          for (int rank = 1; rank < world_size; ++rank) {
            // Near in size, so that the sums are not just the larger term.
            inputs[rank][i] = static_cast<uint16_t>(i ^ (random() & 0x87ff));
          }
        }
        const std::vector<uint16_t> out = Reduce(format.type, reduction, inputs);
        for (size_t i = 0; i < out.size(); ++i) {
          float sum = static_cast<float>(format.Widen(inputs[0][i]));
          for (int rank = 1; rank < world_size; ++rank) {
            sum += static_cast<float>(format.Widen(inputs[rank][i]));
          }
          if (reduction == Reduction::kAverage) sum /= static_cast<float>(world_size);
          if (std::isnan(sum)) {
            CHECK(format.IsNan(out[i]));
          } else {
            CheckBits(out[i], format.Narrow(sum), __LINE__);
          }
        }
      }
    }
  }
}

void CheckHalf(ElementType type, Reduction reduction, std::vector<uint16_t> terms,
               uint16_t expected, int line) {
  std::vector<std::vector<uint16_t>> inputs;
  for (const uint16_t term : terms) inputs.push_back({term});
  CheckBits(Reduce(type, reduction, inputs)[0], expected, line);
}

// The same, spelled out at the edges.
TEST_CASE("EdgesOfHalves") {
  const auto sum = Reduction::kSum, average = Reduction::kAverage;
  const auto f16 = ElementType::kFloat16, bf16 = ElementType::kBFloat16;
  CheckHalf(f16, sum, {0x6800, 0x3c00}, 0x6800, __LINE__);      // 2048 + 1: tie, to even
  CheckHalf(f16, sum, {0x6801, 0x3c00}, 0x6802, __LINE__);      // 2050 + 1: tie, to even
  CheckHalf(f16, sum, {0x7bff, 0x4bff}, 0x7bff, __LINE__);      // 65504 + 15.99: the largest
  CheckHalf(f16, sum, {0x7bff, 0x4c00}, 0x7c00, __LINE__);      // 65504 + 16: infinity
  CheckHalf(f16, sum, {0xfbff, 0xfbff}, 0xfc00, __LINE__);      // and the negative one
  CheckHalf(f16, average, {0x7bff, 0x7bff}, 0x7bff, __LINE__);  // overflows only in between
  CheckHalf(f16, average, {0x0001, 0x0000}, 0x0000, __LINE__);  // half a step: tie, to even
  CheckHalf(f16, average, {0x0001, 0x0002}, 0x0002, __LINE__);  // 1.5 steps: tie, to even
  CheckHalf(f16, sum, {0x03ff, 0x0001}, 0x0400, __LINE__);      // the smallest normal number
  CheckHalf(f16, sum, {0x8001, 0x0001}, 0x0000, __LINE__);
  CheckHalf(f16, sum, {0x8000, 0x8000}, 0x8000, __LINE__);   // -0 + -0
  CheckHalf(bf16, sum, {0x4380, 0x3f80}, 0x4380, __LINE__);  // 256 + 1: tie, to even
  CheckHalf(bf16, sum, {0x4381, 0x3f80}, 0x4382, __LINE__);  // 258 + 1: tie, to even
  CheckHalf(bf16, sum, {0x7f7f, 0x7f7f}, 0x7f80, __LINE__);  // infinity
  CheckHalf(bf16, average, {0x0001, 0x0000}, 0x0000, __LINE__);
  CheckHalf(bf16, sum, {0x8000, 0x8000}, 0x8000, __LINE__);
  for (const HalfFormat& format : kHalves) {
    const uint16_t infinity = format.infinity, minus = 0x8000 | format.infinity;
    const auto difference =
        Reduce(format.type, sum, std::vector<std::vector<uint16_t>>{{infinity}, {minus}});
    CHECK(format.IsNan(difference[0]));
  }
}

// `out` may be one of the contributions.
template <typename T>
void Aliasing(ElementType type) {
  std::mt19937 random(3);
  for (const size_t count : kCounts) {
    for (int world_size = 1; world_size <= 3; ++world_size) {
      std::vector<std::vector<T>> inputs(world_size, std::vector<T>(count));
      for (auto& input : inputs) {
        for (T& value : input) value = static_cast<T>(random() % 1000);
      }
      const std::vector<T> expected = Reduce(type, Reduction::kAverage, inputs);
      for (int target = 0; target < world_size; ++target) {
        std::vector<std::vector<T>> copies = inputs;
        ReduceBlock(type, Reduction::kAverage, Pointers(copies), count, copies[target].data());
        CHECK(copies[target] == expected);
        for (int rank = 0; rank < world_size; ++rank) {
          if (rank != target) CHECK(copies[rank] == inputs[rank]);
        }
      }
    }
  }
}

TEST_CASE("AliasingOutput") {
  Aliasing<float>(ElementType::kFloat32);
  Aliasing<double>(ElementType::kFloat64);
  Aliasing<uint16_t>(ElementType::kFloat16);
  Aliasing<uint16_t>(ElementType::kBFloat16);
}

TEST_CASE("SizesAndNames") {
  CHECK_EQ(ElementSize(ElementType::kFloat16), 2u);
  CHECK_EQ(ElementSize(ElementType::kBFloat16), 2u);
  CHECK_EQ(ElementSize(ElementType::kFloat32), 4u);
  CHECK_EQ(ElementSize(ElementType::kFloat64), 8u);
  CHECK_EQ(std::string(ElementName(ElementType::kBFloat16)), "bfloat16");
}

}  // namespace
}  // namespace tf_libra::element_test
