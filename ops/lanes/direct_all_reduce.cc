#include "ops/lanes/direct_all_reduce.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/lanes/direct_all_reduce_io.h"
#include "ops/lanes/shm_ring_io.h"

namespace tf_libra {
namespace {

constexpr size_t kMinBlockBytes = 2 * 1024;
constexpr size_t kScratchBytes = 1024 * 1024;

ElementType TypeOf(const ExchangeOptions& options) {
  if (options.has_float32_buffers) return ElementType::kFloat32;
  return static_cast<ElementType>(options.header.element_type);
}

Reduction ReductionOf(const ExchangeOptions& options) {
  if (options.has_float32_buffers) return Reduction::kSum;
  return static_cast<Reduction>(options.header.reduction);
}

// No more than there is to be summed, nor than half a ring.
size_t BlockBytes(const ExchangeOptions& options, size_t chunk_bytes) {
  const size_t num_peers = options.peers->size() - 1;
  size_t bytes = ExchangeIo::kMaxBlockBytes;
  while (bytes > kMinBlockBytes &&
         (bytes * num_peers > kScratchBytes || bytes / 2 >= chunk_bytes)) {
    bytes /= 2;
  }
  for (const Connection& one : *options.peers) {
    if (one.memory == nullptr) continue;
    bytes = std::min(bytes, one.memory->incoming_parts()->capacity() / 2);
  }
  return bytes;
}

class Exchange {
 public:
  Exchange(const ExchangeOptions& options, std::vector<char>* scratch)
      : options_(options),
        element_size_(ElementSize(TypeOf(options))),
        own_chunk_(ChunkOf(options.rank)),
        moves_(options, own_chunk_, BlockBytes(options, own_chunk_.size())) {
    const size_t world_size = options.peers->size();
    const size_t num_blocks =
        std::count_if(options.peers->begin(), options.peers->end(),
                      [](const Connection& one) { return one.valid() && one.memory == nullptr; });
    scratch->resize(num_blocks * moves_.block_bytes());
    char* block = scratch->data();
    for (size_t i = 1; i < world_size; ++i) {
      // Beginning behind the own index: else all would turn to the same rank first.
      const size_t index = (options.rank + i) % world_size;
      ExchangePeer peer;
      peer.index = static_cast<int>(index);
      peer.rank = options.names == nullptr ? peer.index : (*options.names)[index];
      peer.fd = (*options.peers)[index].socket.fd();
      peer.memory = (*options.peers)[index].memory.get();
      peer.chunk = ChunkOf(index);
      if (peer.memory == nullptr) {
        peer.block = block;
        block += moves_.block_bytes();
      }
      // Phases that this exchange does not run are marked complete.
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
    CountLacking();
    num_left_ = peers_.size();
  }

  ExchangeResult Run() {
    TimePoint last_progress = Clock::now();
    bool warned = false;
    for (size_t i = 0; i < peers_.size(); ++i) turns_.push_back(i);
    while (num_left_ > 0 || moves_.summed() < own_chunk_.size()) {
      const bool summed = SumReadyBlock();
      if (summed) WakeAll();
      if (!ServeAll(summed)) return *moves_.result();
      if (progress_) {
        last_progress = Clock::now();
        warned = false;
      } else if (!Wait(last_progress, &warned)) {
        return *moves_.result();
      }
    }
    return *moves_.result();
  }

 private:
  ByteRange ChunkOf(size_t index) const {
    if (options_.chunks != nullptr) return (*options_.chunks)[index];
    return Part(options_.slice, element_size_, options_.peers->size(), index);
  }

  // Whose part of the next block is not all there.
  void CountLacking() {
    num_lacking_ = std::count_if(peers_.begin(), peers_.end(), [this](const ExchangePeer& peer) {
      return peer.part_received < moves_.BlockEnd();
    });
  }

  void WakeUp(size_t i) {
    if (std::exchange(peers_[i].rests, false) && !peers_[i].is_through) turns_.push_back(i);
  }

  void WakeAll() {
    for (size_t i = 0; i < peers_.size(); ++i) WakeUp(i);
  }

  // Serves all peers that are not idle, then those with progress, or whose memory may change at any
  // time. Returns false on a failure.
  bool ServeAll(bool progress) {
    progress_ = progress;
    served_.swap(turns_);
    turns_.clear();
    for (const size_t i : served_) {
      ExchangePeer& peer = peers_[i];
      const bool lacked = peer.part_received < moves_.BlockEnd();
      // First what does not wait for the peer.
      const Step sent = moves_.Send(&peer);
      if (sent == Step::kFailed) return false;
      const Step received = moves_.Receive(&peer);
      if (received == Step::kFailed) return false;
      if (lacked && peer.part_received >= moves_.BlockEnd()) --num_lacking_;
      const bool moved = received == Step::kProgress || sent == Step::kProgress;
      progress_ = progress_ || moved;
      peer.is_through = moves_.SentAll(peer) && moves_.ReceivedAll(peer);
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

  // Sums the next block of the own chunk, if all parts of it are there. It is sent before the next.
  bool SumReadyBlock() {
    if (moves_.summed() == own_chunk_.size() || num_lacking_ > 0) return false;
    const size_t end = moves_.BlockEnd();
    size_t at = moves_.summed();
    const ByteRange block = {own_chunk_.begin + moves_.summed(), own_chunk_.begin + end};
    options_.buffers->ForEachRun(block, [&](const char* input, char* output, size_t size) {
      if (options_.steps == ExchangeSteps::kAllGather) {
        PlaceOwn(input, size, output);
        return true;
      }
      SumRun(at, size, input, output);
      at += size;
      return true;
    });
    moves_.Summed(end, &peers_);
    CountLacking();
    return true;
  }

  // Writes bytes of the own chunk, of which peers have no part.
  void PlaceOwn(const char* input, size_t size, char* output) {
    if (options_.own_divisor == 1) {
      std::memcpy(output, input, size);
    } else {
      Divide(TypeOf(options_), options_.own_divisor, input, size / element_size_, output);
    }
  }

  // Sums a run from `at` of the own chunk on.
  void SumRun(size_t at, size_t size, const char* input, char* output) {
    const auto any_zero = [this](size_t begin) {
      return std::any_of(peers_.begin(), peers_.end(), [this, begin](const ExchangePeer& peer) {
        return moves_.IsPartMarked(peer, begin);
      });
    };
    ForEachPiece(at, at + size, any_zero, [&](size_t begin, size_t end, bool zero) {
      const auto sum = [&](size_t from, size_t to) {
        const char* const own = input + (from - at);
        char* const result = output + (from - at);
        if (zero && moves_.TrySumZeros(peers_, from, to - from, own, result)) return;
        for (const ExchangePeer& peer : peers_) {
          parts_[peer.index] = moves_.PartOf(peer, from, /*may_be_zero=*/zero);
        }
        parts_[options_.rank] = own;
        Sum(from, to - from, result);
      };
      if (zero) {
        ForEachMarkedBlock(begin, end, sum);
      } else {
        sum(begin, end);
      }
    });
  }

  // Sums `parts_`, `size` bytes from `begin` of the own chunk on.
  void Sum(size_t begin, size_t size, char* output) {
    const ElementType type = TypeOf(options_);
    const size_t count = size / element_size_;
    if (options_.float32_sums != nullptr) {
      SumInFloat32(type, parts_, count, options_.float32_sums + begin / element_size_);
    } else if (options_.rounding_errors != nullptr) {
      SumWithErrors(type, begin, count, output);
    } else {
      ReduceBlock(type, ReductionOf(options_), parts_, count, output);
    }
  }

  void SumWithErrors(ElementType type, size_t begin, size_t count, char* output) {
    const Reduction reduction = ReductionOf(options_);
    const int num_terms = reduction == Reduction::kAverage ? static_cast<int>(parts_.size()) : 1;
    sums_.resize(std::max(sums_.size(), count));
    SumInFloat32(type, parts_, count, sums_.data());
    RoundFromFloat32(type, reduction, num_terms, sums_.data(), count, output);
    float* const errors = options_.rounding_errors + (own_chunk_.begin + begin) / element_size_;
    AddRoundingErrors(type, sums_.data(), output, count, num_terms, options_.error_factor, errors);
  }

  // The ranks that hold the others up.
  std::string WaitedFor() const {
    std::vector<int> late, owing;
    for (const ExchangePeer& peer : peers_) {
      if (!moves_.WantsToReceive(peer) && !moves_.WantsToSend(peer)) continue;
      (moves_.LacksPart(peer) ? late : owing).push_back(peer.rank);
    }
    std::vector<int>& ranks = late.empty() ? owing : late;
    std::sort(ranks.begin(), ranks.end());
    std::string text;
    for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
    return text;
  }

  // Looks for bytes of any peer, if all share memory with this rank and little is exchanged.
  bool FindBytesInMemory() {
    const bool looks = in_memory_.size() == peers_.size() &&
                       options_.slice.size() <= AdaptiveLook::kMostBytes &&
                       AdaptiveLook::HasCores(options_.peers->size());
    return looks && options_.watch->look()->Find([this] {
      return std::any_of(peers_.begin(), peers_.end(), [](const ExchangePeer& peer) {
        return !peer.is_through && (peer.memory->incoming_parts()->HasMoved() ||
                                    peer.memory->incoming_sums()->HasMoved());
      });
    });
  }

  bool AwaitPeersInMemory() {
    return std::all_of(in_memory_.begin(), in_memory_.end(), [this](size_t i) {
      return peers_[i].is_through || moves_.AwaitInMemory(peers_[i]);
    });
  }

  // Runs when no bytes move. A peer that died while it owed nothing is dead as well; if it owed
  // something, all that it sent before has been read.
  Step CheckPeerHealth() {
    for (const ExchangePeer& peer : peers_) {
      if (peer.is_through) continue;  // it may well have left
      const bool is_idle = peer.memory != nullptr || !moves_.WantsToReceive(peer);
      if (options_.watch->has_ended(peer.index) && is_idle) {
        return moves_.Fail(StatusCode::kUnavailable, peer, "closed the connection");
      }
      if (options_.watch->is_link_broken(peer.index)) {
        return moves_.Fail(StatusCode::kUnavailable, peer,
                           "is gone: " + WhyLinkBroke((*options_.links)[peer.rank]));
      }
    }
    return Step::kBlocked;
  }

  // Sleeps until a peer is ready. False: a failure, such as that the deadline has passed.
  bool Wait(TimePoint last_progress, bool* warned) {
    const double silent = -SecondsUntil(last_progress);
    if (silent >= options_.timeout_seconds) {
      moves_.result()->status =
          Status(StatusCode::kDeadlineExceeded,
                 WaitedTooLong(options_.timeout_seconds, "rank(s) " + WaitedFor()));
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
    if (options_.watch->has_trouble() && CheckPeerHealth() == Step::kFailed) return false;
    if (FindBytesInMemory()) return true;
    if (!AwaitPeersInMemory()) return moves_.result()->status.ok();
    const Status status = options_.watch->Wait(After(limit - silent), &news_);
    for (const size_t i : in_memory_) peers_[i].memory->AwaitNothing();
    if (!status.ok()) {
      moves_.result()->status = status;
      return false;
    }
    for (const int index : news_) {
      const size_t i = (index - options_.rank - 1 + peers_.size() + 1) % (peers_.size() + 1);
      if (!moves_.TakeWakes(peers_[i])) return false;
      peers_[i].is_drained = peers_[i].is_full = false;
      WakeUp(i);
    }
    return true;
  }

  const ExchangeOptions& options_;
  const size_t element_size_;
  const ByteRange own_chunk_;
  ExchangeIo moves_;
  std::vector<ExchangePeer> peers_;
  std::vector<size_t> in_memory_;       // of peers_
  size_t num_lacking_ = 0;              // whose part of the next block is not all there
  size_t num_left_ = 0;                 // that are not through
  std::vector<size_t> turns_, served_;  // of peers_: whose turn comes next, and is
  bool progress_ = false;
  std::vector<const void*> parts_;
  std::vector<float> sums_;  // of a block, with error feedback
  std::vector<int> news_;
};

}  // namespace

ExchangeResult RunExchange(const ExchangeOptions& options, std::vector<char>* scratch) {
  return Exchange(options, scratch).Run();
}

}  // namespace tf_libra
