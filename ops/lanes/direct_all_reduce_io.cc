#include "ops/lanes/direct_all_reduce_io.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tf_libra {
namespace {

// Bytes per system call: large enough to amortise it, small enough to take turns.
constexpr size_t kCallBytes = 512 * 1024;

}  // namespace

ExchangeIo::ExchangeIo(const ExchangeOptions& options, ByteRange own_chunk, size_t block_bytes)
    : options_(options),
      own_chunk_(own_chunk),
      block_bytes_(block_bytes),
      has_parts_(options.steps != ExchangeSteps::kAllGather),
      counts_memory_(
          options.counts_memory &&
          std::all_of(options.peers->begin(), options.peers->end(),
                      [](const Connection& one) { return one.memory != nullptr || !one.valid(); })),
      summed_(has_parts_ || options.own_divisor > 0 ? 0 : own_chunk.size()) {}

bool ExchangeIo::SentAll(const ExchangePeer& peer) const {
  return peer.sum_sent == own_chunk_.size() && peer.part_sent == peer.chunk.size() &&
         peer.header_sent == sizeof(ExchangeHeader);
}

bool ExchangeIo::ReceivedAll(const ExchangePeer& peer) const {
  return peer.sum_received == peer.chunk.size() && peer.part_received == own_chunk_.size() &&
         peer.header_received == sizeof(ExchangeHeader);
}

size_t ExchangeIo::BlockEnd() const { return std::min(summed_ + block_bytes_, own_chunk_.size()); }

void ExchangeIo::Summed(size_t end, std::vector<ExchangePeer>* peers) {
  for (ExchangePeer& peer : *peers) {
    if (peer.memory == nullptr || !has_parts_) continue;
    AdvanceRing(peer.fd, peer.memory->incoming_parts(), end - summed_);
  }
  summed_ = end;
}

bool ExchangeIo::LacksPart(const ExchangePeer& peer) const {
  return peer.header_received < sizeof(ExchangeHeader) || peer.part_received < BlockEnd();
}

bool ExchangeIo::WantsToReceive(const ExchangePeer& peer) const {
  if (LacksPart(peer)) return true;
  const bool may_follow = peer.memory != nullptr || peer.part_received == own_chunk_.size();
  return may_follow && peer.sum_received < peer.chunk.size();
}

bool ExchangeIo::WantsToSend(const ExchangePeer& peer) const {
  return peer.header_sent < sizeof(ExchangeHeader) || peer.part_sent < peer.chunk.size() ||
         peer.sum_sent < summed_;
}

Step ExchangeIo::Fail(StatusCode code, const ExchangePeer& peer, const std::string& what) {
  result_.status = Status(code, "rank " + std::to_string(peer.rank) + " " + what);
  return Step::kFailed;
}

size_t ExchangeIo::AddSegment(OutgoingSegments* segments, OutgoingSegments::Side side,
                              ByteRange range, size_t at, size_t limit, size_t most,
                              Runs* runs) const {
  segments->Begin(*options_.buffers, side, range, at, limit, options_.omits_zeros);
  if (segments->header_left() > 0) {
    runs->Add(const_cast<char*>(segments->header_rest()), segments->header_left());
  }
  const Segment& segment = segments->current();
  limit = std::min(limit, segment.end);
  while (at < limit && most > 0) {
    const size_t end = std::min(segment.RunEnd(at), limit);
    if (!segment.Travels(at)) {
      at = end;
      continue;
    }
    const size_t size = std::min(end - at, most);
    const ByteRange run = {range.begin + at, range.begin + at + size};
    options_.buffers->ForEachRun(run, [&](const char* input, char* output, size_t size) {
      if (runs->count == kMaxRuns) {
        most = 0;
        return false;
      }
      const bool is_input = side == OutgoingSegments::Side::kInputs;
      runs->Add(is_input ? const_cast<char*>(input) : output, size);
      at += size;
      most -= size;
      return true;
    });
  }
  return at;
}

void ExchangeIo::CountSent(OutgoingSegments* segments, size_t limit, size_t* at, size_t* sent) {
  const size_t before = *at;
  const size_t omitted = segments->Advance(limit, at, sent);
  result_.num_omitted += omitted;
  result_.num_sent += *at - before - omitted;
}

Step ExchangeIo::Outcome(const ExchangePeer& peer, ssize_t bytes) {
  if (bytes > 0) return Step::kProgress;
  if (bytes == 0) return Fail(StatusCode::kUnavailable, peer, "closed the connection");
  if (WouldBlock(errno)) return Step::kBlocked;
  return Fail(StatusCode::kUnavailable, peer, "is gone: " + ErrnoText(errno));
}

Step ExchangeIo::SendRuns(ExchangePeer* peer, Runs* runs, size_t* sent) {
  msghdr message{};
  message.msg_iov = runs->runs;
  message.msg_iovlen = runs->count;
  const ssize_t bytes = sendmsg(peer->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  const Step step = Outcome(*peer, bytes);
  *sent = step == Step::kProgress ? static_cast<size_t>(bytes) : 0;
  peer->is_full = step == Step::kBlocked;
  return step;
}

Step ExchangeIo::ReceiveRuns(ExchangePeer* peer, Runs* runs, size_t* received) {
  msghdr message{};
  message.msg_iov = runs->runs;
  message.msg_iovlen = runs->count;
  const ssize_t bytes = recvmsg(peer->fd, &message, MSG_DONTWAIT);
  const Step step = Outcome(*peer, bytes);
  *received = step == Step::kProgress ? static_cast<size_t>(bytes) : 0;
  peer->is_drained = step == Step::kBlocked;
  return step;
}

// The header, the part and what is summed, as far as they come next: small ones in one call.
Step ExchangeIo::Send(ExchangePeer* peer) {
  if (peer->memory != nullptr) return SendInMemory(peer);
  if (peer->is_full) return Step::kBlocked;
  Runs runs;
  const size_t header = sizeof(ExchangeHeader) - peer->header_sent;
  if (header > 0) {
    const char* const bytes = reinterpret_cast<const char*>(&options_.header);
    runs.Add(const_cast<char*>(bytes) + peer->header_sent, header);
  }
  const size_t part_end = AddSegment(&peer->part_out, OutgoingSegments::Side::kInputs, peer->chunk,
                                     peer->part_sent, peer->chunk.size(), kCallBytes, &runs);
  const bool sends_sum = part_end == peer->chunk.size() && runs.count + 2 <= kMaxRuns;
  if (sends_sum) {
    AddSegment(&peer->sum_out, OutgoingSegments::Side::kOutputs, own_chunk_, peer->sum_sent,
               summed_, kCallBytes, &runs);
  }
  if (runs.count == 0) return Step::kBlocked;
  size_t sent = 0;
  const Step step = SendRuns(peer, &runs, &sent);
  const size_t of_header = std::min(header, sent);
  peer->header_sent += of_header;
  sent -= of_header;
  if (peer->header_sent < sizeof(ExchangeHeader)) return step;
  CountSent(&peer->part_out, peer->chunk.size(), &peer->part_sent, &sent);
  if (sends_sum && peer->part_sent == peer->chunk.size()) {
    CountSent(&peer->sum_out, summed_, &peer->sum_sent, &sent);
  }
  return step;
}

Step ExchangeIo::Receive(ExchangePeer* peer) {
  if (!WantsToReceive(*peer)) return Step::kBlocked;
  const bool has_header = peer->header_received == sizeof(ExchangeHeader);
  if (peer->memory != nullptr) {
    return has_header ? ReceiveInMemory(peer) : ReceiveHeaderInMemory(peer);
  }
  return has_header && peer->part_received == own_chunk_.size() ? ReceiveSum(peer)
                                                                : ReceivePart(peer);
}

// The header, too.
Step ExchangeIo::ReceivePart(ExchangePeer* peer) {
  const auto find_memory = [this, peer](size_t begin, size_t end, auto visit) {
    visit(peer->block + (begin - summed_), end - begin);
  };
  return ReceiveRange(peer, &peer->part_in, own_chunk_.size(), BlockEnd(), &peer->part_received,
                      find_memory);
}

Step ExchangeIo::ReceiveSum(ExchangePeer* peer) {
  // A peer has no sum of a part that was not sent to it.
  const size_t most = options_.steps == ExchangeSteps::kAll ? peer->part_sent : peer->chunk.size();
  const auto find_memory = [this, peer](size_t begin, size_t end, auto visit) {
    const ByteRange bytes = {peer->chunk.begin + begin, peer->chunk.begin + end};
    options_.buffers->ForEachRun(
        bytes, [&visit](const char*, char* output, size_t size) { return visit(output, size); });
  };
  return ReceiveRange(peer, &peer->sum_in, peer->chunk.size(), most, &peer->sum_received,
                      find_memory);
}

template <typename FindMemory>
Step ExchangeIo::ReceiveRange(ExchangePeer* peer, IncomingSegments* segments, size_t num_bytes,
                              size_t limit, size_t* at, FindMemory find_memory) {
  const auto fill = [&find_memory](size_t begin, size_t end) {
    find_memory(begin, end, [](char* data, size_t size) {
      std::memset(data, 0, size);
      return true;
    });
  };
  const size_t header = sizeof(ExchangeHeader) - peer->header_received;
  const size_t before = *at;
  segments->Begin(num_bytes);
  // What does not travel needs no news of the peer.
  if (header == 0) static_cast<void>(segments->Advance(limit, at, 0, fill));
  const Step filled = *at > before ? Step::kProgress : Step::kBlocked;
  if (peer->is_drained) return filled;
  Runs runs;
  if (header > 0) {
    runs.Add(reinterpret_cast<char*>(&peer->header) + peer->header_received, header);
  }
  const Segment& segment = segments->current();
  const size_t stop = std::min({limit, segment.end, *at + kCallBytes});
  size_t end = *at;
  while (end < stop && runs.count < kMaxRuns) {
    const size_t next = std::min(segment.RunEnd(end), stop);
    if (!segment.Travels(end)) {
      end = next;
      continue;
    }
    find_memory(end, next, [&runs, &end](char* data, size_t size) {
      if (runs.count == kMaxRuns) return false;
      runs.Add(data, size);
      end += size;
      return true;
    });
  }
  if (end == segment.end && segments->header_left() > 0 && runs.count < kMaxRuns) {
    runs.Add(segments->header_rest(), segments->header_left());
  }
  if (runs.count == 0) return filled;
  const bool is_first = peer->header_received == 0;
  size_t received = 0;
  const Step step = ReceiveRuns(peer, &runs, &received);
  if (step != Step::kProgress) return Both(step, filled);
  if (is_first && ++arrived_ == options_.peers->size() - 1) {
    result_.first_byte_nanos = SteadyNanos();
  }
  if (header > 0) {
    const size_t of_header = std::min(header, received);
    peer->header_received += of_header;
    received -= of_header;
    if (peer->header_received < sizeof(ExchangeHeader)) return step;
    // Before the part that has come with it counts.
    if (CheckHeader(peer) == Step::kFailed) return Step::kFailed;
  }
  if (segments->Advance(limit, at, received, fill)) return step;
  return Fail(StatusCode::kFailedPrecondition, *peer, "sent a segment that cannot be");
}

Step ExchangeIo::CheckHeader(ExchangePeer* peer) {
  const std::string difference = DifferenceOf(peer->header, options_.header);
  if (difference.empty()) return Step::kProgress;
  // The peer is to see the difference as well, and not to wait for this rank to leave.
  while (peer->header_sent < sizeof(ExchangeHeader) && Send(peer) == Step::kProgress) {
  }
  return Fail(StatusCode::kFailedPrecondition, *peer, difference);
}

}  // namespace tf_libra
