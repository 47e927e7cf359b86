// A peer that is lost in the middle of what it sends in 16 bits: neither tensors nor the rounding
// errors of error feedback have changed.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "ops/lanes/direct_all_reduce_testing.h"
#include "ops/lanes/testing.h"
#include "ops/lanes/wire_format.h"

namespace tf_libra::wire_format_faults_test {
namespace {

constexpr size_t kCount = 20'000;
constexpr size_t kChunkBytes = kCount;  // of each of two ranks, in 16 bits
constexpr float kError = 0.25f;

// An exchange of rank 0 with a peer that sends `num_sent` bytes, of its part and of its sum, after
// its header, and leaves unless these are all.
class Victim {
 public:
  explicit Victim(ElementType type) : script_(2, kCount) {
    options_ = script_.options;
    options_.header.element_type = static_cast<uint8_t>(type);
    peers_.column = std::move(script_.meshes[0].lanes[0].column);
    CHECK_EQ(WatchPeers(grid_, nullptr, &peers_), testing::IsOk());
  }

  Status RunAgainst(size_t num_sent) {
    script_.SendHeader(1, options_.header);
    for (size_t range = 0; range < 2; ++range) {
      const size_t count = std::min(num_sent, kChunkBytes);
      script_.SendSegmentHeader(1, kChunkBytes);
      script_.Send(1, std::vector<char>(count, '\x11').data(), count);
      num_sent -= count;
      if (count < kChunkBytes) {
        script_.meshes[1] = Mesh();
        break;
      }
    }
    WireScratch scratch;
    const Buffers errors({{errors_.data(), errors_.data(), errors_.size() * sizeof(float)}});
    return RunInWireFormat(options_, errors, grid_, peers_, &scratch).status;
  }

  bool HasOldErrors() const {
    return std::count(errors_.begin(), errors_.end(), kError) ==
           static_cast<std::ptrdiff_t>(kCount);
  }
  testing::Scripted* script() { return &script_; }

 private:
  testing::Scripted script_;
  ExchangeOptions options_;
  const Grid grid_ = Grid(0, 2, {});
  GridPeers peers_;
  std::vector<float> errors_ = std::vector<float>(kCount, kError);
};

TEST_CASE("LostInMidBlock") {
  testing::OverBoth();
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBFloat16}) {
    for (const size_t num_sent : {size_t{0}, size_t{1}, kChunkBytes / 2 + 1, kChunkBytes - 1,
                                  kChunkBytes, kChunkBytes + 513, 2 * kChunkBytes - 1}) {
      Victim victim(type);
      CHECK_EQ(victim.RunAgainst(num_sent), testing::StatusIs(StatusCode::kUnavailable, "rank 1"));
      CHECK(victim.HasOldErrors());
      victim.script()->CheckUntouched();
    }
  }
}

// The same script to its end.
TEST_CASE("WholeStreamsChangeErrors") {
  testing::OverBoth();
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBFloat16}) {
    Victim victim(type);
    CHECK_EQ(victim.RunAgainst(2 * kChunkBytes), testing::IsOk());
    CHECK(!victim.HasOldErrors());
  }
}

}  // namespace
}  // namespace tf_libra::wire_format_faults_test
