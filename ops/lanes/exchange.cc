#include "ops/lanes/exchange.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "ops/lanes/ring_moves.h"

namespace tf_libra {
namespace {

// Parts of the own chunk are summed a block at a time, while they are in the cache: those of all
// peers together. Powers of two, as are the sizes of rings.
constexpr size_t kMaxBlockBytes = 128 * 1024;
constexpr size_t kMinBlockBytes = 2 * 1024;
constexpr size_t kScratchBytes = 1024 * 1024;
// Bytes per system call: large enough to amortise it, small enough to take turns.
constexpr size_t kCallBytes = 512 * 1024;
constexpr size_t kMaxRuns = 64;

// No more than there is to be summed.
size_t BlockBytes(size_t num_peers, size_t chunk_bytes) {
  size_t bytes = kMaxBlockBytes;
  while (bytes > kMinBlockBytes &&
         (bytes * num_peers > kScratchBytes || bytes / 2 >= chunk_bytes)) {
    bytes /= 2;
  }
  return bytes;
}

// What is still to be exchanged with one peer. Each direction carries a header, then the part
// of the receiver's chunk, then the sender's own chunk, summed.
struct Peer {
  int place = 0;
  int rank = 0;  // for messages
  int fd = -1;
  SharedMemory* memory = nullptr;
  // Over a socket: nothing moved, and nothing that it depends on has changed.
  bool rests = false;
  bool is_through = false;
  ByteRange chunk;  // owned by this peer
  size_t header_sent = 0;
  size_t part_sent = 0;  // of `chunk`
  size_t sum_sent = 0;   // of the own chunk
  ExchangeHeader header;
  size_t header_received = 0;
  size_t part_received = 0;  // of the own chunk
  size_t sum_received = 0;   // of `chunk`
  char* block = nullptr;     // holds a block of the own chunk from `summed` on; none with memory
};

class Exchange {
 public:
  Exchange(const ExchangeOptions& options, std::vector<char>* scratch)
      : options_(options),
        element_size_(ElementSize(static_cast<ElementType>(options.header.element_type))) {
    const size_t world_size = options.peers->size();
    own_chunk_ = Part(options.slice, element_size_, world_size, options.rank);
    block_bytes_ = BlockBytes(world_size - 1, own_chunk_.size());
    size_t num_blocks = 0;
    for (const Connection& one : *options.peers) {
      num_blocks += one.valid() && one.memory == nullptr;
      if (one.memory != nullptr) {
        block_bytes_ = std::min(block_bytes_, one.memory->incoming_parts()->capacity() / 2);
      }
    }
    scratch->resize(num_blocks * block_bytes_);
    char* block = scratch->data();
    for (size_t i = 1; i < world_size; ++i) {
      // Beginning behind the own place: else all would turn to the same rank first.
      const size_t place = (options.rank + i) % world_size;
      Peer peer;
      peer.place = static_cast<int>(place);
      peer.rank = options.names == nullptr ? peer.place : (*options.names)[place];
      peer.fd = (*options.peers)[place].socket.fd();
      peer.memory = (*options.peers)[place].memory.get();
      peer.chunk = Part(options.slice, element_size_, world_size, place);
      if (peer.memory == nullptr) {
        peer.block = block;
        block += block_bytes_;
      }
      // What is no step of this counts as done.
      if (options.steps == ExchangeSteps::kReduceScatter) {
        peer.sum_sent = own_chunk_.size();
        peer.sum_received = peer.chunk.size();
      } else if (options.steps == ExchangeSteps::kAllGather) {
        peer.part_sent = peer.chunk.size();
        peer.part_received = own_chunk_.size();
      }
      if (peer.memory != nullptr) in_memory_.push_back(peers_.size());
      peers_.push_back(peer);
    }
    parts_.resize(world_size);
    if (options.steps == ExchangeSteps::kAllGather) summed_ = own_chunk_.size();
    for (const Peer& peer : peers_) num_lacking_ += peer.part_received < BlockEnd();
    num_left_ = peers_.size();
  }

  ExchangeResult Run() {
    TimePoint last_progress = Clock::now();
    bool warned = false;
    for (size_t i = 0; i < peers_.size(); ++i) turns_.push_back(i);
    while (num_left_ > 0 || summed_ < own_chunk_.size()) {
      const bool summed = SumReadyBlock();
      if (summed) WakeAll();
      if (!ServeAll(summed)) return result_;
      if (progress_) {
        last_progress = Clock::now();
        warned = false;
      } else if (!Wait(last_progress, &warned)) {
        return result_;
      }
    }
    return result_;
  }

 private:
  bool SentAll(const Peer& peer) const {
    return peer.sum_sent == own_chunk_.size() && peer.part_sent == peer.chunk.size() &&
           peer.header_sent == sizeof(ExchangeHeader);
  }

  bool ReceivedAll(const Peer& peer) const {
    return peer.sum_received == peer.chunk.size() && peer.part_received == own_chunk_.size() &&
           peer.header_received == sizeof(ExchangeHeader);
  }

  void WakeUp(size_t i) {
    if (std::exchange(peers_[i].rests, false) && !peers_[i].is_through) turns_.push_back(i);
  }

  void WakeAll() {
    for (size_t i = 0; i < peers_.size(); ++i) WakeUp(i);
  }

  // Gives all who do not rest a turn, and then those another with whom something has moved, or who
  // may move memory at any time. False: a failure.
  bool ServeAll(bool progress) {
    progress_ = progress;
    served_.swap(turns_);
    turns_.clear();
    for (const size_t i : served_) {
      Peer& peer = peers_[i];
      const bool lacked = peer.part_received < BlockEnd();
      const Step received = Receive(&peer);
      const Step sent = received == Step::kFailed ? Step::kFailed : Send(&peer);
      if (sent == Step::kFailed) return false;
      if (lacked && peer.part_received >= BlockEnd()) --num_lacking_;
      const bool moved = received == Step::kProgress || sent == Step::kProgress;
      progress_ = progress_ || moved;
      peer.is_through = SentAll(peer) && ReceivedAll(peer);
      if (peer.is_through) {
        --num_left_;
      } else if (moved || peer.memory != nullptr) {
        turns_.push_back(i);
      } else {
        peer.rests = true;
      }
    }
    return true;
  }

  size_t BlockEnd() const { return std::min(summed_ + block_bytes_, own_chunk_.size()); }

  // What has come from `summed_` on.
  static const char* PartOf(const Peer& peer) {
    return peer.memory == nullptr ? peer.block : peer.memory->incoming_parts()->here();
  }

  // Sums the next block of the own chunk, if all parts of it are there. It is sent before the next.
  bool SumReadyBlock() {
    if (summed_ == own_chunk_.size() || num_lacking_ > 0) return false;
    const size_t end = BlockEnd();
    size_t at = 0;  // within the block
    options_.buffers->ForEachRun({own_chunk_.begin + summed_, own_chunk_.begin + end},
                                 [&](const char* input, char* output, size_t size) {
                                   for (const Peer& peer : peers_)
                                     parts_[peer.place] = PartOf(peer) + at;
                                   parts_[options_.rank] = input;
                                   ReduceBlock(
                                       static_cast<ElementType>(options_.header.element_type),
                                       static_cast<Reduction>(options_.header.reduction), parts_,
                                       size / element_size_, output);
                                   at += size;
                                   return true;
                                 });
    for (Peer& peer : peers_) {
      if (peer.memory == nullptr) continue;
      AdvanceRing(peer.fd, peer.memory->incoming_parts(), end - summed_);
    }
    summed_ = end;
    for (const Peer& peer : peers_) num_lacking_ += peer.part_received < BlockEnd();
    return true;
  }

  Step Fail(StatusCode code, const Peer& peer, const std::string& what) {
    result_.status = Status(code, "rank " + std::to_string(peer.rank) + " " + what);
    return Step::kFailed;
  }

  // Gathers runs of `range` for one system call: inputs to send, or outputs to receive into.
  template <typename Choose>
  size_t Gather(ByteRange range, iovec* runs, Choose choose) const {
    size_t count = 0;
    options_.buffers->ForEachRun(range, [&](const char* input, char* output, size_t size) {
      runs[count++] = iovec{choose(input, output), size};
      return count < kMaxRuns;
    });
    return count;
  }

  // `bytes` > 0 moved, or what errno says; zero means that the peer has closed.
  Step Outcome(const Peer& peer, ssize_t bytes) {
    if (bytes > 0) return Step::kProgress;
    if (bytes == 0) return Fail(StatusCode::kUnavailable, peer, "closed the connection");
    if (WouldBlock(errno)) return Step::kBlocked;
    return Fail(StatusCode::kUnavailable, peer, "is gone: " + ErrnoText(errno));
  }

  // A step in shared memory, whose failure has one cause.
  Step InMemory(const Peer& peer, Step step) {
    if (step != Step::kFailed) return step;
    return Fail(StatusCode::kFailedPrecondition, peer,
                "has written into the shared memory what cannot be");
  }

  // Up to a block.
  template <typename Copy>
  Step CopyRange(Peer* peer, RingEnd* end, ByteRange range, size_t limit, size_t* moved,
                 Copy copy) {
    return InMemory(*peer, CopyThroughRing(*options_.buffers, range, limit, kMaxBlockBytes,
                                           peer->fd, end, moved, copy));
  }

  Step SendHeaderInMemory(Peer* peer) {
    const auto copy = [this](char* place) {
      std::memcpy(place, &options_.header, sizeof(ExchangeHeader));
    };
    return InMemory(*peer, MoveHeaderThroughRing(peer->fd, peer->memory->outgoing_parts(),
                                                 &peer->header_sent, copy));
  }

  Step ReceiveHeaderInMemory(Peer* peer) {
    const auto copy = [peer](char* place) {
      std::memcpy(&peer->header, place, sizeof(ExchangeHeader));
    };
    return InMemory(*peer, MoveHeaderThroughRing(peer->fd, peer->memory->incoming_parts(),
                                                 &peer->header_received, copy));
  }

  // What is there stays there until it is summed.
  Step ReceivePartInMemory(Peer* peer) {
    size_t there = 0;
    const Step looked = LookIntoRing(*peer->memory->incoming_parts(), &there);
    if (InMemory(*peer, looked) == Step::kFailed) return looked;
    const size_t received = std::min(own_chunk_.size(), summed_ + there);
    if (received == peer->part_received) return Step::kBlocked;
    peer->part_received = received;
    return Step::kProgress;
  }

  // Of two that were tried.
  static Step Both(Step one, Step other) {
    if (one == Step::kFailed || other == Step::kFailed) return Step::kFailed;
    return one == Step::kProgress ? one : other;
  }

  Step SendInMemory(Peer* peer) {
    if (peer->header_sent < sizeof(ExchangeHeader)) return SendHeaderInMemory(peer);
    const Step part =
        CopyRange(peer, peer->memory->outgoing_parts(), peer->chunk, peer->chunk.size(),
                  &peer->part_sent, [](const char* input, char*, char* place, size_t size) {
                    std::memcpy(place, input, size);
                  });
    if (part == Step::kFailed) return part;
    return Both(part,
                CopyRange(peer, peer->memory->outgoing_sums(), own_chunk_, summed_, &peer->sum_sent,
                          [](const char*, char* output, char* place, size_t size) {
                            std::memcpy(place, output, size);
                          }));
  }

  // After the header.
  Step ReceiveInMemory(Peer* peer) {
    const Step part = ReceivePartInMemory(peer);
    if (part == Step::kFailed) return part;
    return Both(part, CopyRange(peer, peer->memory->incoming_sums(), peer->chunk,
                                peer->chunk.size(), &peer->sum_received,
                                [](const char*, char* output, char* place, size_t size) {
                                  std::memcpy(output, place, size);
                                }));
  }

  Step SendRuns(Peer* peer, iovec* runs, size_t count, size_t* sent) {
    msghdr message{};
    message.msg_iov = runs;
    message.msg_iovlen = count;
    const ssize_t bytes = sendmsg(peer->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    const Step step = Outcome(*peer, bytes);
    if (step == Step::kProgress) *sent += static_cast<size_t>(bytes);
    return step;
  }

  Step ReceiveRuns(Peer* peer, iovec* runs, size_t count, size_t* received) {
    msghdr message{};
    message.msg_iov = runs;
    message.msg_iovlen = count;
    const ssize_t bytes = recvmsg(peer->fd, &message, MSG_DONTWAIT);
    const Step step = Outcome(*peer, bytes);
    if (step == Step::kProgress) *received += static_cast<size_t>(bytes);
    return step;
  }

  Step Send(Peer* peer) {
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
      const size_t count = Gather(
          {begin, end}, runs, [](const char* input, char*) { return const_cast<char*>(input); });
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

  // Nobody has a sum to send without every rank's part of its block.
  bool LacksPart(const Peer& peer) const {
    return peer.header_received < sizeof(ExchangeHeader) || peer.part_received < BlockEnd();
  }

  // Whether this peer may deliver now; over a socket not while its block is full and waits for
  // other ranks.
  bool WantsToReceive(const Peer& peer) const {
    if (LacksPart(peer)) return true;
    const bool may_follow = peer.memory != nullptr || peer.part_received == own_chunk_.size();
    return may_follow && peer.sum_received < peer.chunk.size();
  }

  bool WantsToSend(const Peer& peer) const {
    return peer.header_sent < sizeof(ExchangeHeader) || peer.part_sent < peer.chunk.size() ||
           peer.sum_sent < summed_;
  }

  Step Receive(Peer* peer) {
    if (!WantsToReceive(*peer)) return Step::kBlocked;
    iovec runs[kMaxRuns];
    if (peer->header_received < sizeof(ExchangeHeader)) {
      runs[0] = iovec{reinterpret_cast<char*>(&peer->header) + peer->header_received,
                      sizeof(ExchangeHeader) - peer->header_received};
      const bool first = peer->header_received == 0;
      const Step step = peer->memory != nullptr
                            ? ReceiveHeaderInMemory(peer)
                            : ReceiveRuns(peer, runs, 1, &peer->header_received);
      if (first && step == Step::kProgress && ++arrived_ == peers_.size()) {
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
    if (peer->memory != nullptr) return ReceiveInMemory(peer);
    if (peer->part_received < own_chunk_.size()) {
      runs[0] =
          iovec{peer->block + (peer->part_received - summed_), BlockEnd() - peer->part_received};
      return ReceiveRuns(peer, runs, 1, &peer->part_received);
    }
    const size_t begin = peer->chunk.begin + peer->sum_received;
    const size_t end = std::min(begin + kCallBytes, peer->chunk.end);
    const size_t count =
        Gather({begin, end}, runs, [](const char*, char* output) { return output; });
    return ReceiveRuns(peer, runs, count, &peer->sum_received);
  }

  Step CheckHeader(const Peer& peer) {
    const std::string difference = DifferenceOf(peer.header, options_.header);
    if (difference.empty()) return Step::kProgress;
    return Fail(StatusCode::kFailedPrecondition, peer, difference);
  }

  // The ranks that hold the others up.
  std::string WaitedFor() const {
    std::vector<int> late, owing;
    for (const Peer& peer : peers_) {
      if (!WantsToReceive(peer) && !WantsToSend(peer)) continue;
      (LacksPart(peer) ? late : owing).push_back(peer.rank);
    }
    std::vector<int>& ranks = late.empty() ? owing : late;
    std::sort(ranks.begin(), ranks.end());
    std::string text;
    for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
    return text;
  }

  // False: there is something now, or a failure.
  bool Await(const Peer& peer, RingEnd* end, size_t left) {
    return InMemory(peer, AwaitRing(end, left)) == Step::kBlocked;
  }

  // Has a peer that shares memory wake this rank for what it waits for. False: there is something
  // now, or a failure.
  bool AwaitInMemory(const Peer& peer) {
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

  bool AwaitPeersInMemory() {
    return std::all_of(in_memory_.begin(), in_memory_.end(), [this](size_t i) {
      return peers_[i].is_through || AwaitInMemory(peers_[i]);
    });
  }

  // Nothing moves any more. A peer that died while nothing was expected of it is still a peer that
  // died; where something is, what it sent before it died has been read.
  Step LookForTrouble() {
    for (const Peer& peer : peers_) {
      if (peer.is_through) continue;  // it may well have left
      const bool is_idle = peer.memory != nullptr || !WantsToReceive(peer);
      if (options_.watch->has_ended(peer.place) && is_idle) {
        return Fail(StatusCode::kUnavailable, peer, "closed the connection");
      }
      if (options_.watch->is_link_broken(peer.place)) {
        return Fail(StatusCode::kUnavailable, peer,
                    "is gone: " + WhyLinkBroke((*options_.links)[peer.rank]));
      }
    }
    return Step::kBlocked;
  }

  // Sleeps until a peer is ready. False: a failure, such as that the deadline has passed.
  bool Wait(TimePoint last_progress, bool* warned) {
    const double silent = -SecondsUntil(last_progress);
    if (silent >= options_.timeout_seconds) {
      std::ostringstream what;
      what << "waited " << options_.timeout_seconds << " s for rank(s) " << WaitedFor();
      result_.status = Status(StatusCode::kDeadlineExceeded, what.str());
      return false;
    }
    double limit = options_.timeout_seconds;
    if (!*warned && options_.stall_warning_seconds < options_.timeout_seconds) {
      if (silent >= options_.stall_warning_seconds) {
        *warned = true;
        if (options_.on_stall) options_.on_stall(WaitedFor(), silent);
      } else {
        limit = options_.stall_warning_seconds;
      }
    }
    if (options_.watch->has_trouble() && LookForTrouble() == Step::kFailed) return false;
    if (!AwaitPeersInMemory()) return result_.status.ok();
    options_.watch->Wait(After(limit - silent), &news_);
    for (const size_t i : in_memory_) peers_[i].memory->AwaitNothing();
    for (const int place : news_) {
      const size_t i = (place - options_.rank - 1 + peers_.size() + 1) % (peers_.size() + 1);
      if (peers_[i].memory != nullptr) DrainWakes(peers_[i].fd);
      WakeUp(i);
    }
    return true;
  }

  const ExchangeOptions& options_;
  const size_t element_size_;
  size_t block_bytes_ = 0;
  ByteRange own_chunk_;
  size_t summed_ = 0;   // bytes of the own chunk that are final
  size_t arrived_ = 0;  // peers that have sent anything
  std::vector<Peer> peers_;
  std::vector<size_t> in_memory_;       // of peers_
  size_t num_lacking_ = 0;              // whose part of the next block is not all there
  size_t num_left_ = 0;                 // that are not through
  std::vector<size_t> turns_, served_;  // of peers_: whose turn comes next, and is
  bool progress_ = false;
  std::vector<const void*> parts_;
  std::vector<int> news_;
  ExchangeResult result_;
};

}  // namespace

ExchangeResult RunExchange(const ExchangeOptions& options, std::vector<char>* scratch) {
  return Exchange(options, scratch).Run();
}

}  // namespace tf_libra
