#include "ops/lanes/element.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

// One binary for every x86-64: ReduceBlock chooses what the processor can run. Sums have no
// multiplication to contract, so all implementations give the same bits.
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define TF_LIBRA_AVX2 __attribute__((target("avx2,f16c"), always_inline)) inline
#define TF_LIBRA_AVX2_ENTRY __attribute__((target("avx2,f16c"), noinline))
#endif

namespace tf_libra {
namespace {

// Elements summed at a time where a wider accumulator is needed; it stays in the first cache.
constexpr size_t kTile = 1024;

inline float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t ToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

struct BFloat16 {
  using Sum = float;
  uint16_t bits;

  static inline float Widen(BFloat16 x) { return FromBits(static_cast<uint32_t>(x.bits) << 16); }

  // Round to nearest even; a NaN stays a NaN.
  static inline BFloat16 Narrow(float x) {
    const uint32_t bits = ToBits(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
  }
};

struct Float16 {
  using Sum = float;
  uint16_t bits;

  static inline float Widen(Float16 x) {
    const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
    const uint32_t magnitude = x.bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return FromBits(sign | 0x7f800000u | (magnitude << 13));
    if (magnitude < 0x0400u) {  // subnormal: exact in float32
      const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24
      return FromBits(sign | ToBits(value));
    }
    return FromBits(sign | ((magnitude << 13) + (112u << 23)));
  }

  // Round to nearest even; too large becomes infinity, a NaN stays a NaN.
  static inline Float16 Narrow(float x) {
    const uint32_t bits = ToBits(x);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
    if (magnitude >= 0x47800000u) return {static_cast<uint16_t>(sign | 0x7c00u)};
    if (magnitude < 0x38800000u) {
      // Adding 0.5 lets the float unit round to a multiple of 2^-24, half's smallest step.
      const float shifted = FromBits(magnitude) + 0.5f;
      return {static_cast<uint16_t>(sign | (ToBits(shifted) - 0x3f000000u))};
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return {static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13))};
  }
};

// An element that is summed in its own type.
template <typename T>
struct Native {
  using Sum = T;
  T value;
  static inline T Widen(Native x) { return x.value; }
  static inline Native Narrow(T x) { return {x}; }
};

// Reads and writes at any address.
template <typename T>
inline T Read(const void* from, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
inline void Write(T value, void* to, size_t index) {
  std::memcpy(static_cast<char*>(to) + index * sizeof(T), &value, sizeof(T));
}

// Not inlined: GCC would interleave the loops over ranks and elements, and vectorize neither.
template <typename In>
__attribute__((noinline)) void AddTo(const void* term, size_t begin, size_t count,
                                     typename In::Sum* sum) {
  for (size_t i = 0; i < count; ++i) sum[i] += In::Widen(Read<In>(term, begin + i));
}

// Conversion of a sum of type In to the type Out.
template <typename In>
struct Division {
  bool is_average;
  typename In::Sum divisor;
};

// For every processor. `out` may be one of the contributions, so sums are formed in a tile.
template <typename In, typename Out>
void ReducePortably(Division<In> division, const std::vector<const void*>& contributions,
                    size_t from, size_t to, void* out) {
  alignas(64) typename In::Sum sum[kTile];
  for (size_t begin = from; begin < to; begin += kTile) {
    const size_t n = std::min(kTile, to - begin);
    for (size_t i = 0; i < n; ++i) {  // 0 + -0 would lose the sign
      sum[i] = In::Widen(Read<In>(contributions[0], begin + i));
    }
    for (size_t rank = 1; rank < contributions.size(); ++rank) {
      AddTo<In>(contributions[rank], begin, n, sum);
    }
    if (division.is_average) {
      for (size_t i = 0; i < n; ++i) sum[i] /= division.divisor;
    }
    for (size_t i = 0; i < n; ++i) Write<Out>(Out::Narrow(sum[i]), out, begin + i);
  }
}

#ifdef TF_LIBRA_AVX2
// Elements in one register of their sums' type: how these are read, summed and written.
template <typename T>
struct Avx2;

template <>
struct Avx2<Native<float>> {
  using Sum = __m256;
  static constexpr size_t kWidth = 8;
  static TF_LIBRA_AVX2 Sum Load(const void* from, size_t index) {
    return _mm256_loadu_ps(static_cast<const float*>(from) + index);
  }
  static TF_LIBRA_AVX2 void Store(Sum sum, void* to, size_t index) {
    _mm256_storeu_ps(static_cast<float*>(to) + index, sum);
  }
  static TF_LIBRA_AVX2 Sum Add(Sum sum, Sum term) { return _mm256_add_ps(sum, term); }
  static TF_LIBRA_AVX2 Sum Divide(Sum sum, float by) {
    return _mm256_div_ps(sum, _mm256_set1_ps(by));
  }
};

template <>
struct Avx2<Native<double>> {
  using Sum = __m256d;
  static constexpr size_t kWidth = 4;
  static TF_LIBRA_AVX2 Sum Load(const void* from, size_t index) {
    return _mm256_loadu_pd(static_cast<const double*>(from) + index);
  }
  static TF_LIBRA_AVX2 void Store(Sum sum, void* to, size_t index) {
    _mm256_storeu_pd(static_cast<double*>(to) + index, sum);
  }
  static TF_LIBRA_AVX2 Sum Add(Sum sum, Sum term) { return _mm256_add_pd(sum, term); }
  static TF_LIBRA_AVX2 Sum Divide(Sum sum, double by) {
    return _mm256_div_pd(sum, _mm256_set1_pd(by));
  }
};

template <>
struct Avx2<Float16> : Avx2<Native<float>> {
  static TF_LIBRA_AVX2 Sum Load(const void* from, size_t index) {
    const auto* const half = static_cast<const uint16_t*>(from) + index;
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half)));
  }
  static TF_LIBRA_AVX2 void Store(Sum sum, void* to, size_t index) {
    // The processor would keep a part of a NaN's payload, which Float16::Narrow does not.
    const __m256 is_nan = _mm256_cmp_ps(sum, sum, _CMP_UNORD_Q);
    const __m256 sign = _mm256_and_ps(sum, _mm256_set1_ps(-0.0f));
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    sum = _mm256_blendv_ps(sum, _mm256_or_ps(sign, quiet), is_nan);
    auto* const half = static_cast<uint16_t*>(to) + index;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(half),
                     _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
  }
};

template <>
struct Avx2<BFloat16> : Avx2<Native<float>> {
  static TF_LIBRA_AVX2 Sum Load(const void* from, size_t index) {
    const auto* const half = static_cast<const uint16_t*>(from) + index;
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(half));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  // As BFloat16::Narrow.
  static TF_LIBRA_AVX2 void Store(Sum sum, void* to, size_t index) {
    const __m256i bits = _mm256_castps_si256(sum);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i carry = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, carry), 16);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
    const __m256i found = _mm256_blendv_epi8(rounded, quiet, is_nan);
    auto* const half = static_cast<uint16_t*>(to) + index;
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(half),
        _mm_packus_epi32(_mm256_castsi256_si128(found), _mm256_extracti128_si256(found, 1)));
  }
};

// Reduces in one pass over all contributions, with sums in `kRegisters` registers, from `begin` on;
// returns where fewer elements are left. All contributions of an element are read before it is
// written: `out` may be one of them.
template <size_t kRegisters, typename In, typename Out, typename T>
TF_LIBRA_AVX2 size_t ReduceRegisters(Division<T> division,
                                     const std::vector<const void*>& contributions, size_t begin,
                                     size_t count, void* out) {
  constexpr size_t kStep = kRegisters * In::kWidth;
  const void* const* const terms = contributions.data();
  const size_t num_ranks = contributions.size();
  for (; begin + kStep <= count; begin += kStep) {
    typename In::Sum sum[kRegisters];
    for (size_t i = 0; i < kRegisters; ++i) sum[i] = In::Load(terms[0], begin + i * In::kWidth);
    for (size_t rank = 1; rank < num_ranks; ++rank) {
      for (size_t i = 0; i < kRegisters; ++i) {
        sum[i] = In::Add(sum[i], In::Load(terms[rank], begin + i * In::kWidth));
      }
    }
    for (size_t i = 0; i < kRegisters; ++i) {
      if (division.is_average) sum[i] = In::Divide(sum[i], division.divisor);
      Out::Store(sum[i], out, begin + i * In::kWidth);
    }
  }
  return begin;
}

template <typename In, typename Out>
TF_LIBRA_AVX2_ENTRY size_t ReduceByAvx2(Division<In> division,
                                        const std::vector<const void*>& contributions, size_t count,
                                        void* out) {
  const size_t begin =
      ReduceRegisters<4, Avx2<In>, Avx2<Out>>(division, contributions, 0, count, out);
  return ReduceRegisters<1, Avx2<In>, Avx2<Out>>(division, contributions, begin, count, out);
}

bool HasAvx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}
#endif

template <typename In, typename Out>
void Reduce([[maybe_unused]] Processor processor, Reduction reduction, int divisor,
            const std::vector<const void*>& contributions, size_t count, void* out) {
  const Division<In> division = {reduction == Reduction::kAverage,
                                 static_cast<typename In::Sum>(divisor)};
  size_t begin = 0;
#ifdef TF_LIBRA_AVX2
  if (processor == Processor::kThis && HasAvx2()) {
    begin = ReduceByAvx2<In, Out>(division, contributions, count, out);
  }
#endif
  ReducePortably<In, Out>(division, contributions, begin, count, out);
}

}  // namespace

size_t ElementSize(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      return 2;
    case ElementType::kFloat32:
      return 4;
    case ElementType::kFloat64:
      return 8;
  }
  return 0;
}

const char* ElementName(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kBFloat16:
      return "bfloat16";
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kFloat64:
      return "float64";
  }
  return "unknown";
}

namespace {

void ReduceElements(ElementType type, Reduction reduction, int divisor,
                    const std::vector<const void*>& contributions, size_t count, void* out,
                    Processor processor) {
  switch (type) {
    case ElementType::kFloat16:
      return Reduce<Float16, Float16>(processor, reduction, divisor, contributions, count, out);
    case ElementType::kBFloat16:
      return Reduce<BFloat16, BFloat16>(processor, reduction, divisor, contributions, count, out);
    case ElementType::kFloat32:
      return Reduce<Native<float>, Native<float>>(processor, reduction, divisor, contributions,
                                                  count, out);
    case ElementType::kFloat64:
      return Reduce<Native<double>, Native<double>>(processor, reduction, divisor, contributions,
                                                    count, out);
  }
}

}  // namespace

void ReduceBlock(ElementType type, Reduction reduction,
                 const std::vector<const void*>& contributions, size_t count, void* out,
                 Processor processor) {
  const int divisor = static_cast<int>(contributions.size());
  ReduceElements(type, reduction, divisor, contributions, count, out, processor);
}

void Divide(ElementType type, int divisor, const void* in, size_t count, void* out) {
  ReduceElements(type, Reduction::kAverage, divisor, {in}, count, out, Processor::kThis);
}

void SumInFloat32(ElementType type, const std::vector<const void*>& contributions, size_t count,
                  float* out) {
  const auto sum = type == ElementType::kFloat16 ? Reduce<Float16, Native<float>>
                                                 : Reduce<BFloat16, Native<float>>;
  sum(Processor::kThis, Reduction::kSum, 1, contributions, count, out);
}

void RoundFromFloat32(ElementType type, Reduction reduction, int num_terms, const float* sums,
                      size_t count, void* out) {
  const auto round = type == ElementType::kFloat16 ? Reduce<Native<float>, Float16>
                                                   : Reduce<Native<float>, BFloat16>;
  round(Processor::kThis, reduction, num_terms, {sums}, count, out);
}

void AddRoundingErrors(ElementType type, const float* sums, const void* rounded, size_t count,
                       int num_terms, float factor, float* errors) {
  constexpr size_t kBlock = 2048;  // within a core's first cache
  float widened[kBlock];
  const auto terms = static_cast<float>(num_terms);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = std::min(kBlock, count - begin);
    SumInFloat32(type, {static_cast<const char*>(rounded) + begin * ElementSize(type)}, size,
                 widened);
    for (size_t i = 0; i < size; ++i) {
      const float lost = (sums[begin + i] - widened[i] * terms) * factor;
      // Infinities and NaNs have an exponent of ones, and a comparison keeps the loop in vectors.
      errors[begin + i] += std::fabs(lost) <= std::numeric_limits<float>::max() ? lost : 0.0f;
    }
  }
}

}  // namespace tf_libra
