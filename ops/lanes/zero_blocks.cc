#include "ops/lanes/zero_blocks.h"

namespace tf_libra {
namespace {

// Looked at in one go: the peers wait meanwhile.
constexpr size_t kMaxZerosBytes = 1024 * 1024;
// Where nearly all blocks travel, a look does not pay. The next looks are rarer and rarer.
constexpr size_t kLeastOmittedShare = 8;
constexpr size_t kMaxUnseenBytes = 4 * 1024 * 1024;
// A tensor of that size is looked at, whatever came before it.
constexpr size_t kLargeTensorBytes = kMixedSegmentBytes;
constexpr size_t kMaxSegmentBytes = size_t{1} << 30;

const char* Of(OutgoingSegments::Side side, const char* input, const char* output) {
  return side == OutgoingSegments::Side::kInputs ? input : output;
}

// Calls `visit(offset, bytes, size)` for each block of `range`, or for its pieces if it lies in
// several tensors, until it returns false.
template <typename Visit>
void ForEachBlock(const Buffers& buffers, OutgoingSegments::Side side, ByteRange range,
                  Visit visit) {
  size_t offset = 0;
  buffers.ForEachRun(range, [&](const char* input, char* output, size_t size) {
    const char* bytes = Of(side, input, output);
    while (size > 0) {
      const size_t piece = std::min(size, kZeroBlockBytes - offset % kZeroBlockBytes);
      if (!visit(offset, bytes, piece)) return false;
      bytes += piece;
      offset += piece;
      size -= piece;
    }
    return true;
  });
}

// Whole blocks of zeros, from the beginning of `range` on.
size_t NumZeros(const Buffers& buffers, OutgoingSegments::Side side, ByteRange range) {
  size_t end = range.size();
  ForEachBlock(buffers, side, range, [&end](size_t offset, const char* bytes, size_t size) {
    if (AreZeros(bytes, size)) return true;
    end = offset / kZeroBlockBytes * kZeroBlockBytes;
    return false;
  });
  return end;
}

// Up to the next large tensor.
size_t NumBeforeLargeTensor(const Buffers& buffers, ByteRange range) {
  size_t offset = 0;
  buffers.ForEachRun(range, [&offset](const char*, char*, size_t size) {
    if (offset > 0 && size >= kLargeTensorBytes) return false;
    offset += size;
    return true;
  });
  return offset;
}

SegmentHeader HeaderOf(SegmentKind kind, size_t num_bytes) {
  SegmentHeader header;
  header.kind = kind;
  header.num_bytes = static_cast<uint32_t>(num_bytes);
  return header;
}

}  // namespace

bool AreZeros(const char* bytes, size_t size) {
  using Words = uint64_t __attribute__((vector_size(16), may_alias, aligned(1)));
  constexpr size_t kLine = 64;
  // What follows zeros is mostly looked at next. It lies in pages that no processor fetches ahead.
  constexpr size_t kAhead = 16 * 1024;
  for (; size >= kLine; bytes += kLine, size -= kLine) {
    __builtin_prefetch(bytes + kAhead);
    const Words* const words = reinterpret_cast<const Words*>(bytes);
    const Words any = (words[0] | words[1]) | (words[2] | words[3]);
    if ((any[0] | any[1]) != 0) return false;
  }
  for (; size > 0; ++bytes, --size) {
    if (*bytes != 0) return false;
  }
  return true;
}

void OutgoingSegments::Begin(const Buffers& buffers, Side side, ByteRange range, size_t at,
                             size_t ready, bool omits_zeros) {
  if (at < current_.end || at >= ready) return;
  if (range.size() < kLeastSegmentedBytes) {
    current_.end = range.size();
    return;
  }
  const ByteRange left = {range.begin + at, range.end};
  current_.header = omits_zeros
                        ? Next(buffers, side, left, ready - at)
                        : HeaderOf(SegmentKind::kWhole, std::min(left.size(), kMaxSegmentBytes));
  current_.begin = at;
  current_.end = at + current_.header.num_bytes;
  header_sent_ = 0;
}

SegmentHeader OutgoingSegments::Next(const Buffers& buffers, Side side, ByteRange left,
                                     size_t num_ready) {
  if (unseen_ > 0) {
    const size_t most = std::min(unseen_, left.size());
    const size_t num_bytes = NumBeforeLargeTensor(buffers, {left.begin, left.begin + most});
    if (num_bytes < most) last_unseen_ = 0;
    unseen_ = 0;
    return HeaderOf(SegmentKind::kWhole, num_bytes);
  }
  SegmentHeader header = HeaderOf(SegmentKind::kMixed, std::min(num_ready, kMixedSegmentBytes));
  const ByteRange seen = {left.begin, left.begin + header.num_bytes};
  ForEachBlock(buffers, side, seen, [&header](size_t offset, const char* bytes, size_t size) {
    const size_t block = offset / kZeroBlockBytes;
    const uint64_t bit = uint64_t{1} << (block % 64);
    uint64_t* const word = &header.travels[block / 64];
    if ((*word & bit) == 0 && !AreZeros(bytes, size)) *word |= bit;
    return true;
  });
  size_t num_blocks = 0;
  for (const uint64_t word : header.travels) num_blocks += __builtin_popcountll(word);
  const size_t of_blocks = (header.num_bytes + kZeroBlockBytes - 1) / kZeroBlockBytes;
  if ((of_blocks - num_blocks) * kLeastOmittedShare <= of_blocks) {
    last_unseen_ = unseen_ = std::clamp(2 * last_unseen_, kMixedSegmentBytes, kMaxUnseenBytes);
    return HeaderOf(SegmentKind::kWhole, header.num_bytes);
  }
  last_unseen_ = 0;
  if (num_blocks > 0) return header;
  const size_t most = std::min(num_ready, kMaxZerosBytes);
  const size_t more = NumZeros(buffers, side, {seen.end, left.begin + most});
  return HeaderOf(SegmentKind::kZeros, header.num_bytes + more);
}

size_t OutgoingSegments::Advance(size_t limit, size_t* at, size_t* sent) {
  const size_t of_header = std::min(header_left(), *sent);
  header_sent_ += of_header;
  *sent -= of_header;
  if (header_left() > 0) return 0;
  size_t omitted = 0;
  current_.Advance(limit, at, sent,
                   [&omitted](size_t begin, size_t end) { omitted += end - begin; });
  return omitted;
}

void IncomingSegments::Begin(size_t num_bytes) {
  if (has_begun_) return;
  has_begun_ = true;
  num_bytes_ = num_bytes;
  if (num_bytes < kLeastSegmentedBytes) current_.end = num_bytes;
}

bool IncomingSegments::TakeNext() {
  const size_t blocks = (next_.num_bytes + kZeroBlockBytes - 1) / kZeroBlockBytes;
  const bool is_mixed = next_.kind == SegmentKind::kMixed;
  if (next_.kind > SegmentKind::kMixed || next_.num_bytes == 0 ||
      next_.num_bytes > num_bytes_ - current_.end ||
      (is_mixed && next_.num_bytes > kMixedSegmentBytes)) {
    return false;
  }
  for (size_t word = 0; word < next_.travels.size(); ++word) {
    const size_t first = word * 64;
    const size_t valid = is_mixed && blocks > first ? std::min<size_t>(blocks - first, 64) : 0;
    if (valid < 64 && next_.travels[word] >> valid != 0) return false;
  }
  current_ = {next_, current_.end, current_.end + next_.num_bytes};
  next_received_ = 0;
  return true;
}

}  // namespace tf_libra
