#include "ops/lanes/wire_format.h"

#include <algorithm>
#include <cstring>

#include "ops/lanes/clock.h"

namespace tf_libra {
namespace {

void Round(ElementType type, const char* from, size_t count, uint16_t* to) {
  RoundFromFloat32(type, Reduction::kSum, 1, reinterpret_cast<const float*>(from), count, to);
}

void Widen(ElementType type, const uint16_t* from, size_t count, char* to) {
  SumInFloat32(type, {from}, count, reinterpret_cast<float*>(to));
}

// Rounds values and errors together, and leaves the new errors.
void RoundWithErrors(ElementType type, const char* from, size_t count, uint16_t* to,
                     float* errors) {
  constexpr size_t kBlock = 2048;  // within a core's first cache
  float block[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = std::min(kBlock, count - begin);
    std::memcpy(block, from + begin * sizeof(float), size * sizeof(float));
    for (size_t i = 0; i < size; ++i) block[i] += errors[begin + i];
    Round(type, reinterpret_cast<const char*>(block), size, to + begin);
    std::fill_n(errors + begin, size, 0.0f);
    AddRoundingErrors(type, block, to + begin, size, 1, 1.0f, errors + begin);
  }
}

}  // namespace

std::optional<ElementType> WireTypeOf(const std::string& name) {
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBFloat16}) {
    if (name == ElementName(type)) return type;
  }
  return std::nullopt;
}

ExchangeResult RunInWireFormat(ExchangeOptions options, const Buffers& errors, const Grid& grid,
                               const GridPeers& peers, WireScratch* scratch) {
  const auto type = static_cast<ElementType>(options.header.element_type);
  const Buffers& tensors = *options.buffers;
  const ByteRange slice = options.slice;
  const size_t count = slice.size() / sizeof(float);
  const bool has_feedback = errors.num_bytes() > 0;
  if (scratch->rounded.size() < count) scratch->rounded.resize(count);
  uint16_t* const rounded = scratch->rounded.data();
  if (has_feedback && scratch->errors.size() < count) scratch->errors.resize(count);
  float* const next_errors = scratch->errors.data();

  size_t at = 0;  // elements of the slice
  if (has_feedback) {
    errors.ForEachRun(slice, [&](const char* run, char*, size_t size) {
      std::memcpy(next_errors + at, run, size);
      at += size / sizeof(float);
      return true;
    });
    at = 0;
  }
  tensors.ForEachRun(slice, [&](const char* input, char*, size_t size) {
    const size_t run = size / sizeof(float);
    if (has_feedback) {
      RoundWithErrors(type, input, run, rounded + at, next_errors + at);
    } else {
      Round(type, input, run, rounded + at);
    }
    at += run;
    return true;
  });

  const Buffers on_wire({{rounded, rounded, count * sizeof(uint16_t)}});
  options.buffers = &on_wire;
  options.rounds_each_level = true;
  options.slice = {0, on_wire.num_bytes()};
  if (has_feedback) options.rounding_errors = next_errors;
  const ExchangeResult result = RunOnGrid(options, grid, peers, on_wire, &scratch->blocks);
  if (!result.status.ok()) return result;

  at = 0;
  tensors.ForEachRun(slice, [&](const char*, char* output, size_t size) {
    Widen(type, rounded + at, size / sizeof(float), output);
    at += size / sizeof(float);
    return true;
  });
  at = 0;
  errors.ForEachRun(has_feedback ? slice : ByteRange{}, [&](const char*, char* run, size_t size) {
    std::memcpy(run, next_errors + at, size);
    at += size / sizeof(float);
    return true;
  });
  return result;
}

double RoundingSeconds(ElementType type, bool error_feedback) {
  constexpr size_t kCount = 1 << 20;  // more than a core's cache
  constexpr int kPasses = 5;          // the first finds memory that is not mapped yet
  std::vector<float> values(kCount, 1.0f);
  std::vector<float> errors(error_feedback ? kCount : 0);
  std::vector<uint16_t> rounded(kCount);
  auto* const bytes = reinterpret_cast<char*>(values.data());
  int64_t shortest = INT64_MAX;
  for (int pass = 0; pass < kPasses; ++pass) {
    const int64_t begin = SteadyNanos();
    if (error_feedback) {
      RoundWithErrors(type, bytes, kCount, rounded.data(), errors.data());
    } else {
      Round(type, bytes, kCount, rounded.data());
    }
    Widen(type, rounded.data(), kCount, bytes);
    shortest = std::min(shortest, SteadyNanos() - begin);
  }
  return static_cast<double>(shortest) * 1e-9 / (kCount * sizeof(float));
}

}  // namespace tf_libra
