// Ranges of bytes on their way over a socket: in segments, without their blocks of zeros. Through
// shared memory they go otherwise (zero_marks.h).
//
// A sender looks for blocks of which every byte is zero, and leaves them out. The receiver has
// zeros in their place, so it sees the same bytes: a block with a negative zero is none of zeros.
// Each segment begins with a header that says what follows, so a sender decides alone, segment by
// segment, and looks at less of what turns out to have no zeros. Short ranges have no headers.
#ifndef TF_LIBRA_OPS_LANES_ZERO_BLOCKS_H_
#define TF_LIBRA_OPS_LANES_ZERO_BLOCKS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "ops/lanes/buffers.h"

namespace tf_libra {

// The gradient of a row of 128 float32.
inline constexpr size_t kZeroBlockBytes = 512;
// Most bytes of a segment of which some blocks travel.
inline constexpr size_t kMixedSegmentBytes = 128 * 1024;
// Ranges of fewer bytes travel whole, without a header.
inline constexpr size_t kLeastSegmentedBytes = 16 * 1024;

// Others than zeros mostly show in the first words.
bool AreZeros(const char* bytes, size_t size);

enum class SegmentKind : uint32_t { kZeros = 0, kWhole = 1, kMixed = 2 };

struct SegmentHeader {
  SegmentKind kind = SegmentKind::kWhole;
  uint32_t num_bytes = 0;  // of the range; those that travel may be fewer
  // One bit per block, from the lowest of the first word on: whether it travels. Of kMixed alone.
  std::array<uint64_t, kMixedSegmentBytes / kZeroBlockBytes / 64> travels{};
};
static_assert(sizeof(SegmentHeader) == 40, "the header goes over the wire as it is");

// Bytes [begin, end) of a range, and which of them travel.
struct Segment {
  SegmentHeader header;
  size_t begin = 0, end = 0;

  // Returns whether the byte at `at` travels.
  bool Travels(size_t at) const {
    if (header.kind != SegmentKind::kMixed) return header.kind == SegmentKind::kWhole;
    const size_t block = (at - begin) / kZeroBlockBytes;
    return (header.travels[block / 64] >> (block % 64) & 1) != 0;
  }
  // Returns where bytes that do as the one at `at` end.
  size_t RunEnd(size_t at) const {
    if (header.kind != SegmentKind::kMixed) return end;
    const bool travels = Travels(at);
    do {
      at += kZeroBlockBytes - (at - begin) % kZeroBlockBytes;
    } while (at < end && Travels(at) == travels);
    return std::min(at, end);
  }
  // Moves `*at` up to `limit`, over `*moved` bytes that travel, which it takes off, and over those
  // that do not, for which it calls `skip(begin, end)`.
  template <typename Skip>
  void Advance(size_t limit, size_t* at, size_t* moved, Skip skip) const {
    limit = std::min(limit, end);
    while (*at < limit) {
      const size_t stop = std::min(RunEnd(*at), limit);
      if (Travels(*at)) {
        const size_t count = std::min(*moved, stop - *at);
        if (count == 0) return;
        *moved -= count;
        *at += count;
      } else {
        skip(*at, stop);
        *at = stop;
      }
    }
  }
};

// A sender's side of a range.
class OutgoingSegments {
 public:
  enum class Side { kInputs, kOutputs };

  // Where the last segment has been sent, begins the next at `at` of `range`, of which the bytes
  // before `ready` are known. `omits_zeros`: looks for them.
  void Begin(const Buffers& buffers, Side side, ByteRange range, size_t at, size_t ready,
             bool omits_zeros);
  const Segment& current() const { return current_; }
  const char* header_rest() const {
    return reinterpret_cast<const char*>(&current_.header) + header_sent_;
  }
  size_t header_left() const { return sizeof(SegmentHeader) - header_sent_; }
  // Of `*sent` bytes the first are of the segment, whose bytes go out up to `limit`: takes them
  // off, and moves `*at` over them and over what does not travel. Returns the bytes of the latter.
  size_t Advance(size_t limit, size_t* at, size_t* sent);

 private:
  SegmentHeader Next(const Buffers& buffers, Side side, ByteRange left, size_t num_ready);

  Segment current_;
  size_t header_sent_ = sizeof(SegmentHeader);
  size_t unseen_ = 0;       // bytes that come next and are not looked at
  size_t last_unseen_ = 0;  // after the last look
};

// A receiver's side of a range.
class IncomingSegments {
 public:
  // Begins a range of that many bytes, unless it has begun.
  void Begin(size_t num_bytes);
  const Segment& current() const { return current_; }
  char* header_rest() { return reinterpret_cast<char*>(&next_) + next_received_; }
  // Of the next header; 0 if the current segment is the last one.
  size_t header_left() const {
    return current_.end == num_bytes_ ? 0 : sizeof(SegmentHeader) - next_received_;
  }
  // Of `*received` bytes the first are of the current segment, and the others of the next header:
  // moves `*at` up to `limit`, and calls `fill(begin, end)` for what does not travel. Returns false
  // if the header describes no segment that can come next.
  template <typename Fill>
  bool Advance(size_t limit, size_t* at, size_t received, Fill fill) {
    current_.Advance(limit, at, &received, fill);
    next_received_ += std::exchange(received, 0);
    if (*at < current_.end || next_received_ < sizeof(SegmentHeader)) return true;
    if (!TakeNext()) return false;
    current_.Advance(limit, at, &received, fill);
    return true;
  }

 private:
  bool TakeNext();

  Segment current_;
  SegmentHeader next_;
  size_t next_received_ = 0;
  size_t num_bytes_ = 0;
  bool has_begun_ = false;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ZERO_BLOCKS_H_
