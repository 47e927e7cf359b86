#include "ops/lanes/collective.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "ops/lanes/buffers.h"
#include "ops/lanes/sha256.h"

namespace tf_libra {
namespace {

// Prefix of the keys of its messages. Between two ranks, parts on their way to their owners come
// before the parts that owners pass on: all are posted together, so they match in this order.
constexpr char kLetter = 'c';
// Largest set that is named in full; a larger one is named by its digest.
constexpr size_t kMaxListedRanks = 16;
// Sizes of the blocks in which the parts of the peers are summed. All are powers of two.
struct Blocks {
  size_t bytes = 32 << 10;        // summed at a time, while they are in the first cache
  size_t ring_bytes = bytes;      // of a peer's part that wait for their sum
  size_t window = SIZE_MAX;       // of a peer
  size_t step_bytes = 128 << 10;  // summed before they go on to others

  explicit Blocks(size_t num_peers) {
    if (num_peers < 2) return;  // no block waits for another peer's
    constexpr size_t kMinRingBytes = 16 << 10, kScratchBytes = 1 << 20;
    ring_bytes = 512 << 10;
    while (ring_bytes > kMinRingBytes && ring_bytes * num_peers > kScratchBytes) ring_bytes /= 2;
    window = ring_bytes;
    step_bytes = std::min<size_t>(128 << 10, ring_bytes / 4);  // more comes while they are summed
    bytes = std::min(bytes, step_bytes);
  }
};

// One collective under way, kept by the messages that it waits for.
class Collective : public std::enable_shared_from_this<Collective> {
 public:
  Collective(Messenger* messenger, int rank, CollectiveRequest request)
      : messenger_(messenger),
        request_(std::move(request)),
        text_(Describe(request_)),
        size_(request_.ranks.size()),
        own_(std::find(request_.ranks.begin(), request_.ranks.end(), rank) -
             request_.ranks.begin()),
        root_(std::find(request_.ranks.begin(), request_.ranks.end(), request_.root) -
              request_.ranks.begin()),
        blocks_(size_ - 1) {}

  Status Start(bool* is_over) {
    try {
      Prepare();
      *is_over = transfers_.empty();  // a rank alone
      left_ = transfers_.size();
      const Status status = *is_over ? Status() : messenger_->Post(std::exchange(transfers_, {}));
      if (!status.ok()) DropTransfers();
      return status;
    } catch (...) {
      DropTransfers();
      throw;
    }
  }

 private:
  void Prepare() {
    switch (request_.kind) {
      case CollectiveKind::kAllReduce:
        SendParts();
        SumInto(request_.output + PartOf(own_).begin);
        SendOwn();
        ReceiveOthers();
        break;
      case CollectiveKind::kReduceScatter:
        SendParts();
        SumInto(request_.output);
        break;
      case CollectiveKind::kReduce:
        SendParts();
        SumInto(request_.output + PartOf(own_).begin);
        if (own_ == root_) {
          ReceiveOthers();
        } else {
          SendOwnTo(root_);
        }
        break;
      case CollectiveKind::kAllGather:
        Gather();
        break;
      case CollectiveKind::kBroadcast:
        Spread();
        break;
    }
    if (size_ == 1 && Sums(request_.kind)) Sum();  // a copy
  }

  ByteRange PartOf(size_t index) const {
    return Part({0, request_.num_bytes}, request_.element_size, size_, index);
  }

  Transfer* Add(Transfer::Way way, size_t peer, const char* data, size_t num_bytes) {
    auto transfer = std::make_shared<Transfer>();
    transfer->way = way;
    transfer->peer = request_.ranks[peer];
    transfer->key = kLetter + request_.name;
    transfer->content = text_;
    transfer->data = const_cast<char*>(data);  // what is sent is only read
    transfer->num_bytes = num_bytes;
    transfer->done = [self = shared_from_this()](const Status& status) { self->OneLess(status); };
    transfers_.push_back(std::move(transfer));
    return transfers_.back().get();
  }

  template <typename Visit>
  void ForEachOther(Visit visit) {
    // Begins with the next rank, so that not all ranks turn to the same one concurrently.
    for (size_t i = 1; i < size_; ++i) visit((own_ + i) % size_);
  }

  void SendParts() {
    ForEachOther([this](size_t peer) {
      const ByteRange part = PartOf(peer);
      Transfer* const send =
          Add(Transfer::Way::kSend, peer, request_.input + part.begin, part.size());
      if (!Sums(request_.kind)) return;
      send->window = blocks_.window;
      send->in_place = true;
    });
  }

  // Received bytes of each peer's part wait in a ring of its own until they are summed.
  void SumInto(char* sum) {
    sum_ = sum;
    const size_t own_bytes = PartOf(own_).size();
    summands_.resize(size_);
    const size_t bytes_of_each = std::min(blocks_.ring_bytes, own_bytes);
    if (size_ > 1) scratch_ = messenger_->TakeScratch(bytes_of_each * (size_ - 1) + 1);
    char* ring = scratch_.data.get();
    ForEachOther([&](size_t peer) {
      Transfer* const receive = Add(Transfer::Way::kReceive, peer, ring, own_bytes);
      receive->window = blocks_.window;
      receive->ring_bytes = blocks_.ring_bytes;
      receive->in_place = true;
      receive->on_progress = [self = shared_from_this()](size_t) { self->Sum(); };
      summands_[peer] = transfers_.back();
      ring += bytes_of_each;
    });
  }

  // As far as it is there.
  void SendOwnTo(size_t peer) {
    const ByteRange part = PartOf(own_);
    Add(Transfer::Way::kSend, peer, request_.output + part.begin, part.size())->num_ready = 0;
    own_sends_.push_back(transfers_.back());
  }

  void SendOwn() {
    ForEachOther([this](size_t peer) { SendOwnTo(peer); });
  }

  void ReceiveOthers() {
    ForEachOther([this](size_t peer) {
      const ByteRange part = PartOf(peer);
      Add(Transfer::Way::kReceive, peer, request_.output + part.begin, part.size());
    });
  }

  void Gather() {
    const size_t bytes = request_.num_bytes;
    if (bytes > 0) std::memcpy(request_.output + own_ * bytes, request_.input, bytes);
    ForEachOther([this, bytes](size_t peer) {
      Add(Transfer::Way::kSend, peer, request_.input, bytes);
      Add(Transfer::Way::kReceive, peer, request_.output + peer * bytes, bytes);
    });
  }

  // The root sends a part to each owner, and owners pass it on: no rank sends much more than a
  // tensor.
  void Spread() {
    const ByteRange own = PartOf(own_);
    if (own_ == root_) {
      if (request_.output != request_.input && request_.num_bytes > 0) {
        std::memcpy(request_.output, request_.input, request_.num_bytes);
      }
      SendParts();
      ForEachOther([this, &own](size_t peer) {
        Add(Transfer::Way::kSend, peer, request_.input + own.begin, own.size());
      });
      return;
    }
    Transfer* const receive =
        Add(Transfer::Way::kReceive, root_, request_.output + own.begin, own.size());
    receive->on_progress = [self = shared_from_this()](size_t num_moved) {
      self->Release(self->own_sends_, num_moved);
    };
    ForEachOther([this](size_t peer) {
      if (peer != root_) SendOwnTo(peer);
      const ByteRange part = PartOf(peer);
      Add(Transfer::Way::kReceive, peer, request_.output + part.begin, part.size());
    });
  }

  void Release(const std::vector<std::weak_ptr<Transfer>>& transfers, size_t num_ready) {
    for (const std::weak_ptr<Transfer>& one : transfers) {
      if (auto transfer = one.lock()) messenger_->Release(std::move(transfer), num_ready);
    }
  }

  // The summands of the own part that are there and not summed, in one piece each.
  size_t NumSummable() const {
    size_t bytes = std::min(blocks_.bytes, PartOf(own_).size() - summed_);
    for (const auto& summand : summands_) {
      if (summand == nullptr) continue;
      if (summand->num_moved <= summed_) return 0;
      bytes = std::min(bytes, summand->num_at(summed_));
    }
    return bytes / request_.element_size * request_.element_size;
  }

  // All of the own part that is there.
  void Sum() {
    const ByteRange part = PartOf(own_);
    contributions_.resize(size_);
    while (const size_t bytes = NumSummable()) {
      for (size_t i = 0; i < size_; ++i) {
        contributions_[i] =
            i == own_ ? request_.input + part.begin + summed_ : summands_[i]->at(summed_);
      }
      ReduceBlock(request_.element_type, request_.reduction, contributions_,
                  bytes / request_.element_size, sum_ + summed_);
      summed_ += bytes;
    }
    for (const auto& summand : summands_) {
      if (summand != nullptr) messenger_->Consume(summand.get(), summed_);
    }
    if (summed_ - released_ < blocks_.step_bytes && summed_ < part.size()) return;
    if (std::exchange(released_, summed_) == summed_) return;
    Release(own_sends_, summed_);
    if (blocks_.window >= part.size()) return;
    for (const auto& summand : summands_) {
      if (summand != nullptr) messenger_->Release(summand, summed_ + blocks_.window);
    }
  }

  void OneLess(const Status& status) {
    if (!status.ok() && status_.ok()) status_ = status;
    if (--left_ == 0) End();
  }

  // Each of them keeps this.
  void DropTransfers() {
    transfers_.clear();
    summands_.clear();
  }

  void End() {
    summands_.clear();
    messenger_->ReturnScratch(std::move(scratch_));
    // Not before: the input may be the same memory, and on its way to others.
    const bool has_output = request_.num_bytes > 0;
    if (request_.kind == CollectiveKind::kReduce && own_ != root_ && status_.ok() && has_output) {
      std::memset(request_.output, 0, request_.num_bytes);
    }
    request_.done(status_);
  }

  Messenger* const messenger_;
  const CollectiveRequest request_;
  const std::string text_;
  const size_t size_, own_, root_;
  const Blocks blocks_;
  std::vector<std::shared_ptr<Transfer>> transfers_;  // to post
  // Weak, since these transfers hold this object.
  std::vector<std::weak_ptr<Transfer>> own_sends_;
  std::vector<TransferPtr> summands_;  // [index]: receives of the own part, until the end
  ScratchBuffer scratch_;
  char* sum_ = nullptr;
  // From Post on, of the messenger's thread.
  std::vector<const void*> contributions_;
  size_t summed_ = 0, released_ = 0;
  size_t left_ = 0;  // messages
  Status status_;
};

// Equal for equal sets in the same order, and short however many ranks there are.
std::string DescribeRanks(const std::vector<int>& ranks) {
  std::string text;
  const auto add = [&text](int rank) { text += (text.empty() ? "" : ", ") + std::to_string(rank); };
  if (ranks.size() <= kMaxListedRanks) {
    for (const int rank : ranks) add(rank);
    return text;
  }
  Sha256 sha;
  for (const int rank : ranks) {
    const std::string number = std::to_string(rank) + ",";
    sha.Add(number.data(), number.size());
  }
  const Digest digest = sha.Finish();
  std::string digits;
  for (size_t i = 0; i < 8; ++i) {
    char pair[3];
    std::snprintf(pair, sizeof(pair), "%02x", static_cast<unsigned>(digest[i]));
    digits += pair;
  }
  for (size_t i = 0; i < 3; ++i) add(ranks[i]);
  return text + ", ..., " + std::to_string(ranks.back()) + " (" + std::to_string(ranks.size()) +
         " ranks, digest " + digits + ")";
}

Status Refused(const CollectiveRequest& request, const std::string& why) {
  return Status(StatusCode::kInvalidArgument,
                "'" + request.name + "', " + Describe(request) + ": " + why);
}

}  // namespace

const char* CollectiveName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kReduce:
      break;
  }
  return "reduce";
}

bool Sums(CollectiveKind kind) {
  return kind != CollectiveKind::kAllGather && kind != CollectiveKind::kBroadcast;
}

std::string Describe(const CollectiveRequest& request) {
  std::string text = CollectiveName(request.kind);
  if (Sums(request.kind)) text += request.reduction == Reduction::kSum ? " (sum)" : " (average)";
  text += " of " + request.content + " over ranks " + DescribeRanks(request.ranks);
  if (request.root >= 0) text += ", root " + std::to_string(request.root);
  return text;
}

Status RunCollective(Messenger* messenger, int rank, int world_size, CollectiveRequest request,
                     bool* is_over) {
  const std::set<int> set(request.ranks.begin(), request.ranks.end());
  if (set.size() != request.ranks.size()) return Refused(request, "a rank is named twice");
  if (set.count(rank) == 0) {
    return Refused(request, "rank " + std::to_string(rank) + " is not among the ranks");
  }
  if (*set.begin() < 0 || *set.rbegin() >= world_size) {
    return Refused(request, "ranks are from 0 to " + std::to_string(world_size - 1));
  }
  const bool has_root =
      request.kind == CollectiveKind::kBroadcast || request.kind == CollectiveKind::kReduce;
  if (has_root && set.count(request.root) == 0) {
    return Refused(request, "the root is not among the ranks");
  }
  if (request.kind == CollectiveKind::kReduceScatter &&
      request.num_bytes % (set.size() * request.element_size) != 0) {
    return Refused(request, "its elements cannot be dealt out evenly");
  }
  return std::make_shared<Collective>(messenger, rank, std::move(request))->Start(is_over);
}

}  // namespace tf_libra
