#include "ops/lanes/lane_exchange_moves.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tf_libra {
namespace {

// Bytes per system call: large enough to amortise it, small enough to take turns.
constexpr size_t kCallBytes = 512 * 1024;
constexpr size_t kMaxRuns = 64;

// Of two that were tried.
Step Both(Step one, Step other) {
  if (one == Step::kFailed || other == Step::kFailed) return Step::kFailed;
  return one == Step::kProgress ? one : other;
}

}  // namespace

ExchangeMoves::ExchangeMoves(const ExchangeOptions& options, ByteRange own_chunk,
                             size_t block_bytes)
    : options_(options),
      own_chunk_(own_chunk),
      block_bytes_(block_bytes),
      summed_(options.steps == ExchangeSteps::kAllGather ? own_chunk.size() : 0) {}

bool ExchangeMoves::SentAll(const ExchangePeer& peer) const {
  return peer.sum_sent == own_chunk_.size() && peer.part_sent == peer.chunk.size() &&
         peer.header_sent == sizeof(ExchangeHeader);
}

bool ExchangeMoves::ReceivedAll(const ExchangePeer& peer) const {
  return peer.sum_received == peer.chunk.size() && peer.part_received == own_chunk_.size() &&
         peer.header_received == sizeof(ExchangeHeader);
}

size_t ExchangeMoves::BlockEnd() const {
  return std::min(summed_ + block_bytes_, own_chunk_.size());
}

void ExchangeMoves::Summed(size_t end, std::vector<ExchangePeer>* peers) {
  for (ExchangePeer& peer : *peers) {
    if (peer.memory == nullptr) continue;
    AdvanceRing(peer.fd, peer.memory->incoming_parts(), end - summed_);
  }
  summed_ = end;
}

const char* ExchangeMoves::PartOf(const ExchangePeer& peer) {
  return peer.memory == nullptr ? peer.block : peer.memory->incoming_parts()->here();
}

bool ExchangeMoves::LacksPart(const ExchangePeer& peer) const {
  return peer.header_received < sizeof(ExchangeHeader) || peer.part_received < BlockEnd();
}

bool ExchangeMoves::WantsToReceive(const ExchangePeer& peer) const {
  if (LacksPart(peer)) return true;
  const bool may_follow = peer.memory != nullptr || peer.part_received == own_chunk_.size();
  return may_follow && peer.sum_received < peer.chunk.size();
}

bool ExchangeMoves::WantsToSend(const ExchangePeer& peer) const {
  return peer.header_sent < sizeof(ExchangeHeader) || peer.part_sent < peer.chunk.size() ||
         peer.sum_sent < summed_;
}

Step ExchangeMoves::Fail(StatusCode code, const ExchangePeer& peer, const std::string& what) {
  result_.status = Status(code, "rank " + std::to_string(peer.rank) + " " + what);
  return Step::kFailed;
}

template <typename Choose>
size_t ExchangeMoves::Gather(ByteRange range, iovec* runs, Choose choose) const {
  size_t count = 0;
  options_.buffers->ForEachRun(range, [&](const char* input, char* output, size_t size) {
    runs[count++] = iovec{choose(input, output), size};
    return count < kMaxRuns;
  });
  return count;
}

Step ExchangeMoves::Outcome(const ExchangePeer& peer, ssize_t bytes) {
  if (bytes > 0) return Step::kProgress;
  if (bytes == 0) return Fail(StatusCode::kUnavailable, peer, "closed the connection");
  if (WouldBlock(errno)) return Step::kBlocked;
  return Fail(StatusCode::kUnavailable, peer, "is gone: " + ErrnoText(errno));
}

Step ExchangeMoves::SendRuns(ExchangePeer* peer, iovec* runs, size_t count, size_t* sent) {
  msghdr message{};
  message.msg_iov = runs;
  message.msg_iovlen = count;
  const ssize_t bytes = sendmsg(peer->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  const Step step = Outcome(*peer, bytes);
  if (step == Step::kProgress) *sent += static_cast<size_t>(bytes);
  return step;
}

Step ExchangeMoves::ReceiveRuns(ExchangePeer* peer, iovec* runs, size_t count, size_t* received) {
  msghdr message{};
  message.msg_iov = runs;
  message.msg_iovlen = count;
  const ssize_t bytes = recvmsg(peer->fd, &message, MSG_DONTWAIT);
  const Step step = Outcome(*peer, bytes);
  if (step == Step::kProgress) *received += static_cast<size_t>(bytes);
  return step;
}

Step ExchangeMoves::Send(ExchangePeer* peer) {
  if (peer->memory != nullptr) return SendInMemory(peer);
  iovec runs[kMaxRuns];
  if (peer->header_sent < sizeof(ExchangeHeader)) {
    auto* bytes = reinterpret_cast<const char*>(&options_.header);
    runs[0] = iovec{const_cast<char*>(bytes) + peer->header_sent,
                    sizeof(ExchangeHeader) - peer->header_sent};
    return SendRuns(peer, runs, 1, &peer->header_sent);
  }
  if (peer->part_sent < peer->chunk.size()) {
    const size_t begin = peer->chunk.begin + peer->part_sent;
    const size_t end = std::min(begin + kCallBytes, peer->chunk.end);
    const size_t count = Gather({begin, end}, runs,
                                [](const char* input, char*) { return const_cast<char*>(input); });
    return SendRuns(peer, runs, count, &peer->part_sent);
  }
  if (peer->sum_sent < summed_) {
    const size_t begin = own_chunk_.begin + peer->sum_sent;
    const size_t end = std::min(begin + kCallBytes, own_chunk_.begin + summed_);
    const size_t count =
        Gather({begin, end}, runs, [](const char*, char* output) { return output; });
    return SendRuns(peer, runs, count, &peer->sum_sent);
  }
  return Step::kBlocked;
}

Step ExchangeMoves::Receive(ExchangePeer* peer) {
  if (!WantsToReceive(*peer)) return Step::kBlocked;
  if (peer->header_received < sizeof(ExchangeHeader)) return ReceiveHeader(peer);
  if (peer->memory != nullptr) return ReceiveInMemory(peer);
  iovec runs[kMaxRuns];
  if (peer->part_received < own_chunk_.size()) {
    runs[0] =
        iovec{peer->block + (peer->part_received - summed_), BlockEnd() - peer->part_received};
    return ReceiveRuns(peer, runs, 1, &peer->part_received);
  }
  const size_t begin = peer->chunk.begin + peer->sum_received;
  const size_t end = std::min(begin + kCallBytes, peer->chunk.end);
  const size_t count = Gather({begin, end}, runs, [](const char*, char* output) { return output; });
  return ReceiveRuns(peer, runs, count, &peer->sum_received);
}

Step ExchangeMoves::ReceiveHeader(ExchangePeer* peer) {
  iovec run{reinterpret_cast<char*>(&peer->header) + peer->header_received,
            sizeof(ExchangeHeader) - peer->header_received};
  const bool first = peer->header_received == 0;
  const Step step = peer->memory != nullptr ? ReceiveHeaderInMemory(peer)
                                            : ReceiveRuns(peer, &run, 1, &peer->header_received);
  if (first && step == Step::kProgress && ++arrived_ == options_.peers->size() - 1) {
    result_.first_byte_nanos = SteadyNanos();
  }
  if (step != Step::kProgress || peer->header_received < sizeof(ExchangeHeader)) return step;
  const Step checked = CheckHeader(*peer);
  // The peer is to see the difference as well, and not to wait for this rank to leave.
  while (checked == Step::kFailed && peer->header_sent < sizeof(ExchangeHeader)) {
    const Status cause = result_.status;
    const Step sent = Send(peer);
    result_.status = cause;
    if (sent != Step::kProgress) break;
  }
  return checked;
}

Step ExchangeMoves::CheckHeader(const ExchangePeer& peer) {
  const std::string difference = DifferenceOf(peer.header, options_.header);
  if (difference.empty()) return Step::kProgress;
  return Fail(StatusCode::kFailedPrecondition, peer, difference);
}

Step ExchangeMoves::InMemory(const ExchangePeer& peer, Step step) {
  if (step != Step::kFailed) return step;
  return Fail(StatusCode::kFailedPrecondition, peer,
              "has written into the shared memory what cannot be");
}

template <typename Copy>
Step ExchangeMoves::CopyRange(ExchangePeer* peer, RingEnd* end, ByteRange range, size_t limit,
                              size_t* moved, Copy copy) {
  return InMemory(*peer, CopyThroughRing(*options_.buffers, range, limit, kMaxBlockBytes, peer->fd,
                                         end, moved, copy));
}

Step ExchangeMoves::SendHeaderInMemory(ExchangePeer* peer) {
  const auto copy = [this](char* place) {
    std::memcpy(place, &options_.header, sizeof(ExchangeHeader));
  };
  return InMemory(*peer, MoveHeaderThroughRing(peer->fd, peer->memory->outgoing_parts(),
                                               &peer->header_sent, copy));
}

Step ExchangeMoves::ReceiveHeaderInMemory(ExchangePeer* peer) {
  const auto copy = [peer](char* place) {
    std::memcpy(&peer->header, place, sizeof(ExchangeHeader));
  };
  return InMemory(*peer, MoveHeaderThroughRing(peer->fd, peer->memory->incoming_parts(),
                                               &peer->header_received, copy));
}

Step ExchangeMoves::ReceivePartInMemory(ExchangePeer* peer) {
  size_t there = 0;
  const Step looked = LookIntoRing(*peer->memory->incoming_parts(), &there);
  if (InMemory(*peer, looked) == Step::kFailed) return looked;
  const size_t received = std::min(own_chunk_.size(), summed_ + there);
  if (received == peer->part_received) return Step::kBlocked;
  peer->part_received = received;
  return Step::kProgress;
}

Step ExchangeMoves::SendInMemory(ExchangePeer* peer) {
  if (peer->header_sent < sizeof(ExchangeHeader)) return SendHeaderInMemory(peer);
  const Step part = CopyRange(
      peer, peer->memory->outgoing_parts(), peer->chunk, peer->chunk.size(), &peer->part_sent,
      [](const char* input, char*, char* place, size_t size) { std::memcpy(place, input, size); });
  if (part == Step::kFailed) return part;
  return Both(part,
              CopyRange(peer, peer->memory->outgoing_sums(), own_chunk_, summed_, &peer->sum_sent,
                        [](const char*, char* output, char* place, size_t size) {
                          std::memcpy(place, output, size);
                        }));
}

Step ExchangeMoves::ReceiveInMemory(ExchangePeer* peer) {
  const Step part = ReceivePartInMemory(peer);
  if (part == Step::kFailed) return part;
  return Both(
      part, CopyRange(peer, peer->memory->incoming_sums(), peer->chunk, peer->chunk.size(),
                      &peer->sum_received, [](const char*, char* output, char* place, size_t size) {
                        std::memcpy(output, place, size);
                      }));
}

bool ExchangeMoves::Await(const ExchangePeer& peer, RingEnd* end, size_t left) {
  return InMemory(peer, AwaitRing(end, left)) == Step::kBlocked;
}

bool ExchangeMoves::AwaitInMemory(const ExchangePeer& peer) {
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
