#include "ops/lanes/element.h"

#include <algorithm>
#include <cstring>

// One binary for every x86-64: the loader picks the clone that the processor can run. Sums have
// no multiplication to contract, so all clones give the same bits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TF_LIBRA_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TF_LIBRA_CLONES
#endif
// A clone only helps if the loops stand inside it.
#define TF_LIBRA_INLINE inline __attribute__((always_inline))

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
  uint16_t bits;

  static TF_LIBRA_INLINE float Widen(BFloat16 x) {
    return FromBits(static_cast<uint32_t>(x.bits) << 16);
  }

  // Round to nearest even; a NaN stays a NaN.
  static TF_LIBRA_INLINE BFloat16 Narrow(float x) {
    const uint32_t bits = ToBits(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
  }
};

struct Float16 {
  uint16_t bits;

  static TF_LIBRA_INLINE float Widen(Float16 x) {
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
  static TF_LIBRA_INLINE Float16 Narrow(float x) {
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

template <typename T>
TF_LIBRA_INLINE void AddTo(const T* __restrict term, size_t count, T* __restrict sum) {
  for (size_t i = 0; i < count; ++i) sum[i] += term[i];
}

template <typename T>
TF_LIBRA_INLINE void DivideAll(T divisor, size_t count, T* __restrict values) {
  for (size_t i = 0; i < count; ++i) values[i] /= divisor;
}

// `out` may alias a contribution of the same tile, so sums are formed in a tile of their own.
template <typename T>
TF_LIBRA_INLINE void ReduceNative(Reduction reduction,
                                  const std::vector<const void*>& contributions, size_t count,
                                  T* out) {
  alignas(64) T sum[kTile];
  const T divisor = static_cast<T>(contributions.size());
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t n = std::min(kTile, count - begin);
    std::memcpy(sum, static_cast<const T*>(contributions[0]) + begin, n * sizeof(T));
    for (size_t rank = 1; rank < contributions.size(); ++rank) {
      AddTo(static_cast<const T*>(contributions[rank]) + begin, n, sum);
    }
    if (reduction == Reduction::kAverage) DivideAll(divisor, n, sum);
    std::memcpy(out + begin, sum, n * sizeof(T));
  }
}

template <typename Half>
TF_LIBRA_INLINE void ReduceHalf(Reduction reduction, const std::vector<const void*>& contributions,
                                size_t count, Half* out) {
  alignas(64) float sum[kTile];
  const float divisor = static_cast<float>(contributions.size());
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t n = std::min(kTile, count - begin);
    const Half* first = static_cast<const Half*>(contributions[0]) + begin;
    for (size_t i = 0; i < n; ++i) sum[i] = Half::Widen(first[i]);  // 0 + -0 would lose the sign
    for (size_t rank = 1; rank < contributions.size(); ++rank) {
      const Half* term = static_cast<const Half*>(contributions[rank]) + begin;
      for (size_t i = 0; i < n; ++i) sum[i] += Half::Widen(term[i]);
    }
    if (reduction == Reduction::kAverage) DivideAll(divisor, n, sum);
    for (size_t i = 0; i < n; ++i) out[begin + i] = Half::Narrow(sum[i]);
  }
}

TF_LIBRA_CLONES void ReduceFloat32(Reduction reduction,
                                   const std::vector<const void*>& contributions, size_t count,
                                   float* out) {
  ReduceNative<float>(reduction, contributions, count, out);
}

TF_LIBRA_CLONES void ReduceFloat64(Reduction reduction,
                                   const std::vector<const void*>& contributions, size_t count,
                                   double* out) {
  ReduceNative<double>(reduction, contributions, count, out);
}

TF_LIBRA_CLONES void ReduceFloat16(Reduction reduction,
                                   const std::vector<const void*>& contributions, size_t count,
                                   Float16* out) {
  ReduceHalf<Float16>(reduction, contributions, count, out);
}

TF_LIBRA_CLONES void ReduceBFloat16(Reduction reduction,
                                    const std::vector<const void*>& contributions, size_t count,
                                    BFloat16* out) {
  ReduceHalf<BFloat16>(reduction, contributions, count, out);
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

void ReduceBlock(ElementType type, Reduction reduction,
                 const std::vector<const void*>& contributions, size_t count, void* out) {
  switch (type) {
    case ElementType::kFloat16:
      return ReduceFloat16(reduction, contributions, count, static_cast<Float16*>(out));
    case ElementType::kBFloat16:
      return ReduceBFloat16(reduction, contributions, count, static_cast<BFloat16*>(out));
    case ElementType::kFloat32:
      return ReduceFloat32(reduction, contributions, count, static_cast<float*>(out));
    case ElementType::kFloat64:
      return ReduceFloat64(reduction, contributions, count, static_cast<double*>(out));
  }
}

}  // namespace tf_libra
