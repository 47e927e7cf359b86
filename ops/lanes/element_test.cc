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

// Bits of any value: every second element is near the values of ordinary gradients, the others are
// random, with NaNs, infinities and subnormal numbers.
std::vector<char> RandomBits(ElementType type, size_t count, std::mt19937* random) {
  const size_t size = ElementSize(type);
  std::vector<char> data(count * size);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = uint64_t{(*random)()} << 32 | (*random)();
    const int kind = (*random)() % 8;
    const int exponent_bits = type == ElementType::kFloat16 ? 5 : size == 8 ? 11 : 8;
    const int shift = static_cast<int>(8 * size) - 1 - exponent_bits;
    const uint64_t exponent = ((uint64_t{1} << exponent_bits) - 1) << shift;
    if (kind == 0) bits |= exponent;                                       // a NaN
    if (kind == 1) bits = (bits & ~(exponent - 1 + exponent)) | exponent;  // an infinity
    if (kind == 2) bits &= ~exponent;                                      // subnormal
    if (kind >= 4) bits = (bits & ~exponent) | (exponent >> 1 & exponent);
    if (kind == 1) bits &= uint64_t{1} << (8 * size - 1) | exponent;
    std::memcpy(data.data() + i * size, &bits, size);
  }
  return data;
}

uint64_t BitsAt(const char* data, size_t size, size_t index) {
  uint64_t bits = 0;
  std::memcpy(&bits, data + index * size, size);
  return bits;
}

// Which NaN a sum of several gives is not defined.
void CheckSameBits(ElementType type, const std::vector<const void*>& terms, size_t count,
                   const char* left, const char* right, int line) {
  const size_t size = ElementSize(type);
  const int exponent_bits = type == ElementType::kFloat16 ? 5 : size == 8 ? 11 : 8;
  const uint64_t exponent = ((uint64_t{1} << exponent_bits) - 1) << (8 * size - 1 - exponent_bits);
  const uint64_t sign = uint64_t{1} << (8 * size - 1);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t l = BitsAt(left, size, i), r = BitsAt(right, size, i);
    if (l == r) continue;
    size_t nans = 0, infinities = 0;
    for (const void* term : terms) {
      const uint64_t magnitude = BitsAt(static_cast<const char*>(term), size, i) & ~sign;
      nans += magnitude > exponent;
      infinities += magnitude == exponent;
    }
    const bool both_nan = (l & ~sign) > exponent && (r & ~sign) > exponent;
    if (both_nan && (nans > 1 || (nans == 1 && infinities > 1))) continue;
    ADD_FAIL_CHECK_AT(__FILE__, line, ElementName(type), " over ", terms.size(), ": bits ", l,
                      " and ", r);
  }
}

const ElementType kTypes[] = {ElementType::kFloat16, ElementType::kBFloat16, ElementType::kFloat32,
                              ElementType::kFloat64};

// Every number of ranks and elements, at any address, also in place: the same bits as on a
// processor without special instructions.
TEST_CASE("ProcessorsGiveTheSameBits") {
  std::mt19937 random(4);
  for (const ElementType type : kTypes) {
    const size_t size = ElementSize(type);
    for (const size_t num_ranks : {1, 2, 3, 4, 5, 8, 9, 64}) {
      for (const size_t count : {0, 1, 3, 7, 8, 9, 31, 32, 33, 77, 1025}) {
        const size_t offset = random() % 9;
        std::vector<std::vector<char>> inputs(num_ranks);
        std::vector<const void*> terms;
        for (auto& input : inputs) {
          input = RandomBits(type, count, &random);
          input.insert(input.begin(), offset, '\0');
          terms.push_back(input.data() + offset);
        }
        for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
          std::vector<char> any(count * size + 1), here(count * size + 1);
          ReduceBlock(type, reduction, terms, count, any.data() + 1, Processor::kAny);
          ReduceBlock(type, reduction, terms, count, here.data() + 1);
          CheckSameBits(type, terms, count, here.data() + 1, any.data() + 1, __LINE__);
          const size_t target = random() % num_ranks;
          std::vector<char> in_place = inputs[target];
          std::vector<const void*> with_output = terms;
          with_output[target] = in_place.data() + offset;
          ReduceBlock(type, reduction, with_output, count, in_place.data() + offset);
          CHECK(std::equal(here.begin() + 1, here.end(), in_place.begin() + offset));
        }
      }
    }
  }
}

// Of every type as of a sum of one term.
TEST_CASE("DividesAsAverages") {
  constexpr size_t kCount = 1001;
  std::mt19937 random(7);
  for (const int divisor : {1, 2, 3, 5}) {
    for (const ElementType type : {ElementType::kFloat16, ElementType::kBFloat16}) {
      const std::vector<char> values = RandomBits(type, kCount, &random);
      std::vector<float> sums(kCount);
      std::vector<char> expected(values.size()), found(values.size());
      SumInFloat32(type, {values.data()}, kCount, sums.data());
      RoundFromFloat32(type, Reduction::kAverage, divisor, sums.data(), kCount, expected.data());
      Divide(type, divisor, values.data(), kCount, found.data());
      CHECK(found == expected);
    }
    const double values[] = {1.0, -0.0, 5e-324, 1e308, -7.5};
    double found[5];
    Divide(ElementType::kFloat64, divisor, values, 5, found);
    for (int i = 0; i < 5; ++i) CHECK_EQ(found[i], values[i] / divisor);
  }
}

// Every 16-bit value with a sample of others.
TEST_CASE("ProcessorsGiveTheSameBitsOfAllHalves") {
  std::mt19937 random(5);
  std::vector<uint16_t> all(1 << 16), other(1 << 16), any(1 << 16), here(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBFloat16}) {
    for (int sample = 0; sample < 40; ++sample) {
      for (size_t i = 0; i < other.size(); ++i) {
        const uint32_t bits = random();
        // Of any size, or near enough for both terms to matter.
        other[i] = static_cast<uint16_t>(sample % 2 == 0 ? bits : i ^ (bits & 0x83ff));
      }
      const std::vector<const void*> terms =
          sample == 0 ? std::vector<const void*>{all.data()}
                      : std::vector<const void*>{all.data(), other.data()};
      for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
        ReduceBlock(type, reduction, terms, all.size(), any.data(), Processor::kAny);
        ReduceBlock(type, reduction, terms, all.size(), here.data());
        CheckSameBits(type, terms, all.size(), reinterpret_cast<const char*>(here.data()),
                      reinterpret_cast<const char*>(any.data()), __LINE__);
      }
    }
  }
}

// A sum in float32 that is rounded later has the bits of one that is rounded at the end of the sum.
TEST_CASE("RoundedLater") {
  std::mt19937 random(6);
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBFloat16}) {
    for (const size_t num_ranks : {1, 2, 3, 8}) {
      for (const size_t count : {1, 9, 100}) {
        std::vector<std::vector<char>> inputs(num_ranks);
        std::vector<const void*> terms;
        for (auto& input : inputs) {
          input = RandomBits(type, count, &random);
          terms.push_back(input.data());
        }
        for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
          std::vector<char> expected(2 * count), found(2 * count);
          std::vector<float> sums(count);
          ReduceBlock(type, reduction, terms, count, expected.data());
          SumInFloat32(type, terms, count, sums.data());
          RoundFromFloat32(type, reduction, static_cast<int>(num_ranks), sums.data(), count,
                           found.data());
          CheckSameBits(type, terms, count, found.data(), expected.data(), __LINE__);
        }
      }
    }
  }
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
