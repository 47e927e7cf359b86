// GB/s of output at which one core forms the averages of 2 to 8 contributions. One round over all
// element types and numbers of ranks.
// benchmarks/transport.py starts this program and defines the columns that it prints.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "benchmarks/forked_ranks.h"
#include "ops/lanes/clock.h"
#include "ops/lanes/element.h"

namespace {

using tf_libra::ElementType;

constexpr size_t kBytes = 128 << 10;  // the largest block of an exchange
constexpr int kRepetitions = 50;

// Contributions of normal numbers between 1 and 2, or -2 and -1.
std::vector<char> Contribution(ElementType type, int rank) {
  std::mt19937 random(rank);
  std::vector<char> data(kBytes);
  for (size_t at = 0; at < kBytes; at += ElementSize(type)) {
    const uint32_t bits = random();
    const uint64_t wide = (uint64_t{bits} << 32 & 0x800fffff00000000u) | 0x3ff0000000000000u;
    const uint32_t single = (bits & 0x807fffffu) | 0x3f800000u;
    const uint16_t half =
        type == ElementType::kFloat16 ? (bits & 0x83ffu) | 0x3c00u : (bits & 0x807fu) | 0x3f80u;
    const void* const source = ElementSize(type) == 8   ? static_cast<const void*>(&wide)
                               : ElementSize(type) == 4 ? static_cast<const void*>(&single)
                                                        : static_cast<const void*>(&half);
    std::memcpy(data.data() + at, source, ElementSize(type));
  }
  return data;
}

}  // namespace

int main() {
  PinToCore(0);
  std::vector<char> out(kBytes);
  for (const ElementType type : {ElementType::kFloat32, ElementType::kFloat64,
                                 ElementType::kFloat16, ElementType::kBFloat16}) {
    for (const int num_ranks : {2, 3, 4, 8}) {
      std::vector<std::vector<char>> contributions;
      std::vector<const void*> pointers;
      for (int rank = 0; rank < num_ranks; ++rank) {
        contributions.push_back(Contribution(type, rank));
        pointers.push_back(contributions.back().data());
      }
      double best = 1e9;  // interruptions only ever add time
      for (int i = 0; i < kRepetitions; ++i) {
        const auto start = tf_libra::Clock::now();
        ReduceBlock(type, tf_libra::Reduction::kAverage, pointers, kBytes / ElementSize(type),
                    out.data());
        best = std::min(best, -tf_libra::SecondsUntil(start));
      }
      std::printf("%d %s %.4e\n", num_ranks, ElementName(type), kBytes / best);
    }
  }
  return 0;
}
