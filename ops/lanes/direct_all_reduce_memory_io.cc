// Transfers of a direct all-reduce through shared memory.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/lanes/direct_all_reduce_io.h"

namespace tf_libra {
namespace {

// What a marked block contains.
alignas(64) constexpr char kZeros[kMarkedBlockBytes] = {};

// Adds the block of a range that contains byte `at` to a set of blocks.
void SetBlock(size_t at, ByteRange range, std::vector<bool>* blocks) {
  blocks->resize(range.size() / kMarkedBlockBytes);
  (*blocks)[at / kMarkedBlockBytes] = true;
}

// Returns whether a set of blocks, which may have no room for any yet, contains the one at `at`.
bool HasBlock(const std::vector<bool>& blocks, size_t at) {
  return !blocks.empty() && blocks[at / kMarkedBlockBytes];
}

}  // namespace

bool ExchangeIo::IsPartMarked(const ExchangePeer& peer, size_t at) const {
  if (peer.memory == nullptr) return false;
  return MarkedRange{peer.memory->incoming_parts(), own_chunk_.size(), summed_}.IsMarked(at);
}

const char* ExchangeIo::PartOf(const ExchangePeer& peer, size_t at, bool may_be_zero) const {
  if (may_be_zero && IsPartMarked(peer, at)) return kZeros;
  return (peer.memory == nullptr ? peer.block : peer.memory->incoming_parts()->here()) + at -
         summed_;
}

bool ExchangeIo::TrySumZeros(const std::vector<ExchangePeer>& peers, size_t at, size_t size,
                             const char* input, char* output) {
  const bool is_zero =
      options_.omits_zeros && size == kMarkedBlockBytes && options_.float32_sums == nullptr &&
      options_.rounding_errors == nullptr &&
      std::all_of(peers.begin(), peers.end(),
                  [this, at](const ExchangePeer& peer) { return IsPartMarked(peer, at); }) &&
      AreZeros(input, size);
  if (!is_zero) return false;
  if (output != input) std::memset(output, 0, size);
  SetBlock(at, own_chunk_, &zero_sums_);
  return true;
}

Step ExchangeIo::InMemory(const ExchangePeer& peer, Step step) {
  if (step != Step::kFailed) return step;
  return Fail(StatusCode::kFailedPrecondition, peer,
              "wrote an invalid position into the shared memory");
}

template <typename Copy>
Step ExchangeIo::CopyRange(ExchangePeer* peer, RingEnd* end, ByteRange range, size_t limit,
                           size_t grain, size_t* moved, Copy copy) {
  return InMemory(*peer, CopyThroughRing(*options_.buffers, range, limit, kMaxBlockBytes, grain,
                                         peer->fd, end, moved, copy));
}

bool ExchangeIo::TakeWakes(const ExchangePeer& peer) {
  if (peer.memory == nullptr || tf_libra::TakeWakes(peer.fd)) return true;
  Fail(StatusCode::kFailedPrecondition, peer, "sends an endless stream of wake-ups");
  return false;
}

Step ExchangeIo::SendHeaderInMemory(ExchangePeer* peer) {
  const auto copy = [this](char* memory) {
    std::memcpy(memory, &options_.header, sizeof(ExchangeHeader));
  };
  return InMemory(*peer,
                  MoveHeaderThroughRing(peer->memory->outgoing_parts(), &peer->header_sent, copy));
}

Step ExchangeIo::ReceiveHeaderInMemory(ExchangePeer* peer) {
  const auto copy = [peer](char* memory) {
    std::memcpy(&peer->header, memory, sizeof(ExchangeHeader));
  };
  const Step step =
      MoveHeaderThroughRing(peer->memory->incoming_parts(), &peer->header_received, copy);
  if (step != Step::kProgress) return InMemory(*peer, step);
  AdvanceRing(peer->fd, peer->memory->incoming_parts(), 0);
  if (++arrived_ == options_.peers->size() - 1) result_.first_byte_nanos = SteadyNanos();
  return CheckHeader(peer);
}

Step ExchangeIo::ReceivePartInMemory(ExchangePeer* peer) {
  if (!has_parts_) return Step::kBlocked;
  size_t there = 0;
  const Step looked = LookIntoRing(peer->memory->incoming_parts(), &there);
  if (InMemory(*peer, looked) == Step::kFailed) return looked;
  const size_t received = std::min(own_chunk_.size(), summed_ + there);
  if (received == peer->part_received) return Step::kBlocked;
  peer->part_received = received;
  return Step::kProgress;
}

Step ExchangeIo::SendInMemory(ExchangePeer* peer) {
  Step header = Step::kBlocked;
  if (peer->header_sent < sizeof(ExchangeHeader)) {
    header = SendHeaderInMemory(peer);
    if (header != Step::kProgress) return header;
  }
  const MarkedRange parts = {peer->memory->outgoing_parts(), peer->chunk.size(), peer->part_sent};
  size_t at = peer->part_sent;
  const auto write_part = [&](const char* input, char*, char* memory, size_t size) {
    WriteRun(parts, at, size, input, memory, [&](size_t block) {
      if (!options_.omits_zeros || !AreZeros(input + (block - at), kMarkedBlockBytes)) return false;
      SetBlock(block, peer->chunk, &peer->zero_parts);
      return true;
    });
    at += size;
  };
  Step part = CopyRange(peer, peer->memory->outgoing_parts(), peer->chunk, peer->chunk.size(),
                        kMarkedBlockBytes, &peer->part_sent, write_part);
  if (part == Step::kFailed) return part;
  // One wake-up for the header and the part behind it.
  if (header == Step::kProgress && part != header) {
    AdvanceRing(peer->fd, peer->memory->outgoing_parts(), 0);
    part = header;
  }
  const MarkedRange sums = {peer->memory->outgoing_sums(), own_chunk_.size(), peer->sum_sent};
  at = peer->sum_sent;
  const auto write_sum = [&](const char*, char* output, char* memory, size_t size) {
    WriteRun(sums, at, size, output, memory,
             [this](size_t block) { return HasBlock(zero_sums_, block); });
    at += size;
  };
  return Both(part, CopyRange(peer, peer->memory->outgoing_sums(), own_chunk_, summed_,
                              kMarkedBlockBytes, &peer->sum_sent, write_sum));
}

template <typename IsZero>
void ExchangeIo::WriteRun(const MarkedRange& range, size_t at, size_t size, const char* from,
                          char* memory, IsZero is_zero) {
  const size_t end = at + size;
  const auto mark_if_zero = [&](size_t block) {
    uint8_t* const mark = range.mark(block);
    if (mark == nullptr || block % kMarkedBlockBytes != 0) return false;
    const bool zero = block + kMarkedBlockBytes <= end && is_zero(block);
    const uint8_t value = zero ? 1 : 0;
    if (*mark != value) *mark = value;  // a reader may have its line
    return zero;
  };
  ForEachPiece(at, end, mark_if_zero, [&](size_t begin, size_t stop, bool zero) {
    if (counts_memory_) (zero ? result_.num_omitted : result_.num_sent) += stop - begin;
    if (!zero) std::memcpy(memory + (begin - at), from + (begin - at), stop - begin);
  });
}

Step ExchangeIo::ReceiveInMemory(ExchangePeer* peer) {
  const Step part = ReceivePartInMemory(peer);
  if (part == Step::kFailed) return part;
  const MarkedRange sums = {peer->memory->incoming_sums(), peer->chunk.size(), peer->sum_received};
  size_t at = peer->sum_received;
  const auto read = [&](const char* input, char* output, char* memory, size_t size) {
    const auto is_zero = [&](size_t block) { return sums.IsMarked(block); };
    ForEachPiece(at, at + size, is_zero, [&](size_t begin, size_t end, bool zero) {
      if (!zero) {
        std::memcpy(output + (begin - at), memory + (begin - at), end - begin);
        return;
      }
      ForEachMarkedBlock(begin, end, [&](size_t from, size_t to) {
        const bool is_already_zero = input == output && HasBlock(peer->zero_parts, from);
        if (!is_already_zero) std::memset(output + (from - at), 0, to - from);
      });
    });
    at += size;
  };
  return Both(part, CopyRange(peer, peer->memory->incoming_sums(), peer->chunk, peer->chunk.size(),
                              1, &peer->sum_received, read));
}

bool ExchangeIo::Await(const ExchangePeer& peer, RingEnd* end, size_t left) {
  return InMemory(peer, AwaitRing(end, left)) == Step::kBlocked;
}

bool ExchangeIo::AwaitInMemory(const ExchangePeer& peer) {
  SharedMemory* const memory = peer.memory;
  if (peer.header_sent < sizeof(ExchangeHeader)) {
    RingEnd* const end = memory->outgoing_parts();
    if (!Await(peer, end, BytesToHeaderEnd(end->position()))) return false;
  } else if (!Await(peer, memory->outgoing_parts(), peer.chunk.size() - peer.part_sent)) {
    return false;
  }
  if (peer.header_received < sizeof(ExchangeHeader)) {
    RingEnd* const end = memory->incoming_parts();
    return Await(peer, end, BytesToHeaderEnd(end->position()));
  }
  // Parts stay in the ring from `summed_` on.
  const size_t part = peer.part_received < BlockEnd() ? own_chunk_.size() - summed_ : 0;
  return Await(peer, memory->incoming_parts(), part) &&
         Await(peer, memory->incoming_sums(), peer.chunk.size() - peer.sum_received) &&
         Await(peer, memory->outgoing_sums(), std::max(summed_, peer.sum_sent) - peer.sum_sent);
}

}  // namespace tf_libra
