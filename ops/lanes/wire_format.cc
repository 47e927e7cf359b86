#include "ops/lanes/wire_format.h"

#include <algorithm>

#include "ops/lanes/clock.h"

namespace tf_libra {
namespace {

void Round(ElementType type, const char* from, size_t count, uint16_t* to) {
  RoundFromFloat32(type, Reduction::kSum, 1, reinterpret_cast<const float*>(from), count, to);
}

void Widen(ElementType type, const uint16_t* from, size_t count, char* to) {
  SumInFloat32(type, {from}, count, reinterpret_cast<float*>(to));
}

}  // namespace

std::optional<ElementType> WireTypeOf(const std::string& name) {
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBFloat16}) {
    if (name == ElementName(type)) return type;
  }
  return std::nullopt;
}

ExchangeResult RunInWireFormat(ExchangeOptions options, const Grid& grid, const GridPeers& peers,
                               WireScratch* scratch) {
  const auto type = static_cast<ElementType>(options.header.element_type);
  const Buffers& tensors = *options.buffers;
  const ByteRange slice = options.slice;
  const size_t count = slice.size() / sizeof(float);
  if (scratch->rounded.size() < count) scratch->rounded.resize(count);
  uint16_t* const rounded = scratch->rounded.data();

  uint16_t* next = rounded;
  tensors.ForEachRun(slice, [&](const char* input, char*, size_t size) {
    Round(type, input, size / sizeof(float), next);
    next += size / sizeof(float);
    return true;
  });

  const Buffers on_wire({{rounded, rounded, count * sizeof(uint16_t)}});
  options.buffers = &on_wire;
  options.rounds_each_level = true;
  options.slice = {0, on_wire.num_bytes()};
  const ExchangeResult result = RunOnGrid(options, grid, peers, on_wire, &scratch->blocks);
  if (!result.status.ok()) return result;

  next = rounded;
  tensors.ForEachRun(slice, [&](const char*, char* output, size_t size) {
    Widen(type, next, size / sizeof(float), output);
    next += size / sizeof(float);
    return true;
  });
  return result;
}

double RoundingSeconds(ElementType type) {
  constexpr size_t kCount = 1 << 20;  // more than a core's cache
  constexpr int kPasses = 5;          // the first finds memory that is not mapped yet
  std::vector<float> values(kCount, 1.0f);
  std::vector<uint16_t> rounded(kCount);
  auto* const bytes = reinterpret_cast<char*>(values.data());
  int64_t shortest = INT64_MAX;
  for (int pass = 0; pass < kPasses; ++pass) {
    const int64_t begin = SteadyNanos();
    Round(type, bytes, kCount, rounded.data());
    Widen(type, rounded.data(), kCount, bytes);
    shortest = std::min(shortest, SteadyNanos() - begin);
  }
  return static_cast<double>(shortest) * 1e-9 / (kCount * sizeof(float));
}

}  // namespace tf_libra
