// Equal bits: on every processor, at any address, in place, and rounded immediately or later.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "ops/lanes/element.h"
#include "ops/lanes/testing.h"

namespace tf_libra::element_bits_test {
namespace {

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

}  // namespace
}  // namespace tf_libra::element_bits_test
