#include "ops/lanes/collective.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "ops/lanes/buffers.h"

namespace tf_libra {
namespace {

// Of the keys of its messages. Between two ranks parts on their way to their owners come before
// what owners pass on: all are posted at once, so that they meet in this order.
constexpr char kLetter = 'c';
// What is summed at a time, while it is in the cache.
constexpr size_t kBlockBytes = 64 << 10;

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
              request_.ranks.begin()) {}

  Status Start(bool* is_over) {
    try {
      Prepare();
      *is_over = transfers_.empty();  // a rank alone
      left_ = transfers_.size();
      return *is_over ? Status() : messenger_->Post(std::exchange(transfers_, {}));
    } catch (...) {
      transfers_.clear();  // each of which keeps this
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
        if (own_ == root_) {
          SumInto(request_.output + PartOf(own_).begin);
          ReceiveOthers();
        } else {
          SumInto(Scratch(PartOf(own_).size()));
          Add(Transfer::Way::kSend, root_, sum_, PartOf(own_).size(), /*is_ready=*/false);
        }
        break;
      case CollectiveKind::kAllGather:
        Gather();
        break;
      case CollectiveKind::kBroadcast:
        Spread();
        break;
    }
    if (waits_for_ == 0) OwnIsThere();
  }

  ByteRange PartOf(size_t index) const {
    return Part({0, request_.num_bytes}, request_.element_size, size_, index);
  }

  char* Scratch(size_t num_bytes) {
    // As every type of elements wants it.
    scratch_.push_back(std::unique_ptr<char[]>(new char[num_bytes + 1]));
    return scratch_.back().get();
  }

  void Add(Transfer::Way way, size_t peer, const char* data, size_t num_bytes,
           bool is_ready = true) {
    auto transfer = std::make_shared<Transfer>();
    transfer->way = way;
    transfer->peer = request_.ranks[peer];
    transfer->key = kLetter + request_.name;
    transfer->content = text_;
    transfer->data = const_cast<char*>(data);  // what is sent is only read
    transfer->num_bytes = num_bytes;
    transfer->is_ready = is_ready;
    transfer->done = [self = shared_from_this()](const Status& status) { self->OneLess(status); };
    if (!is_ready) to_release_.push_back(transfer);
    transfers_.push_back(std::move(transfer));
  }

  // What the own part waits for.
  void Await(size_t peer, char* data, size_t num_bytes) {
    Add(Transfer::Way::kReceive, peer, data, num_bytes);
    ++waits_for_;
    transfers_.back()->done = [self = shared_from_this()](const Status& status) {
      self->OneOfOwn(status);
    };
  }

  template <typename Visit>
  void ForEachOther(Visit visit) {
    // Beginning with the next one, so that not all ranks turn to the same at once.
    for (size_t i = 1; i < size_; ++i) visit((own_ + i) % size_);
  }

  void SendParts() {
    ForEachOther([this](size_t peer) {
      const ByteRange part = PartOf(peer);
      Add(Transfer::Way::kSend, peer, request_.input + part.begin, part.size());
    });
  }

  void SumInto(char* sum) {
    sum_ = sum;
    const ByteRange part = PartOf(own_);
    parts_.assign(size_, nullptr);
    parts_[own_] = request_.input + part.begin;
    ForEachOther([this, &part](size_t peer) {
      char* const place = Scratch(part.size());
      parts_[peer] = place;
      Await(peer, place, part.size());
    });
  }

  // To all others, once it is there.
  void SendOwn() {
    const ByteRange part = PartOf(own_);
    ForEachOther([this, &part](size_t peer) {
      Add(Transfer::Way::kSend, peer, request_.output + part.begin, part.size(),
          /*is_ready=*/false);
    });
  }

  void ReceiveOthers() {
    ForEachOther([this](size_t peer) {
      const ByteRange part = PartOf(peer);
      Add(Transfer::Way::kReceive, peer, request_.output + part.begin, part.size());
    });
  }

  void Gather() {
    const size_t bytes = request_.num_bytes;
    std::memcpy(request_.output + own_ * bytes, request_.input, bytes);
    ForEachOther([this, bytes](size_t peer) {
      Add(Transfer::Way::kSend, peer, request_.input, bytes);
      Add(Transfer::Way::kReceive, peer, request_.output + peer * bytes, bytes);
    });
  }

  // The root deals out parts, which their owners pass on: nobody sends much more than a tensor.
  void Spread() {
    const ByteRange own = PartOf(own_);
    if (own_ == root_) {
      if (request_.output != request_.input) {
        std::memcpy(request_.output, request_.input, request_.num_bytes);
      }
      SendParts();
      ForEachOther([this, &own](size_t peer) {
        Add(Transfer::Way::kSend, peer, request_.input + own.begin, own.size());
      });
      return;
    }
    Await(root_, request_.output + own.begin, own.size());
    ForEachOther([this, &own](size_t peer) {
      if (peer != root_) {
        Add(Transfer::Way::kSend, peer, request_.output + own.begin, own.size(),
            /*is_ready=*/false);
      }
      const ByteRange part = PartOf(peer);
      Add(Transfer::Way::kReceive, peer, request_.output + part.begin, part.size());
    });
  }

  // All that the own part needs has come.
  void OwnIsThere() {
    if (Sums(request_.kind)) Sum();
    for (const std::weak_ptr<Transfer>& one : to_release_) {
      if (auto send = one.lock()) messenger_->Release(std::move(send));
    }
  }

  void Sum() {
    const size_t bytes = PartOf(own_).size();
    std::vector<const void*> block(size_);
    for (size_t at = 0; at < bytes; at += kBlockBytes) {
      for (size_t i = 0; i < size_; ++i) block[i] = parts_[i] + at;
      ReduceBlock(request_.element_type, request_.reduction, block,
                  std::min(kBlockBytes, bytes - at) / request_.element_size, sum_ + at);
    }
  }

  void OneOfOwn(const Status& status) {
    if (status.ok() && --waits_for_ == 0) {
      try {
        OwnIsThere();
      } catch (...) {
        OneLess(CaughtStatus(text_.c_str()));
        throw;  // the others of its messages end with all that is under way
      }
    }
    OneLess(status);
  }

  void OneLess(const Status& status) {
    if (!status.ok() && status_.ok()) status_ = status;
    if (--left_ == 0) End();
  }

  void End() {
    // Not before: the input may be the same memory, and on its way to others.
    if (request_.kind == CollectiveKind::kReduce && own_ != root_ && status_.ok()) {
      std::memset(request_.output, 0, request_.num_bytes);
    }
    request_.done(status_);
  }

  Messenger* const messenger_;
  const CollectiveRequest request_;
  const std::string text_;
  const size_t size_, own_, root_;
  std::vector<std::shared_ptr<Transfer>> transfers_;  // to post
  std::vector<std::weak_ptr<Transfer>> to_release_;   // which hold this
  std::vector<std::unique_ptr<char[]>> scratch_;
  std::vector<const char*> parts_;
  char* sum_ = nullptr;
  // From Post on, of the thread that calls `done`.
  size_t waits_for_ = 0;  // messages of the own part
  size_t left_ = 0;       // messages
  Status status_;
};

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
  text += " of " + request.content + " over ranks ";
  for (size_t i = 0; i < request.ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(request.ranks[i]);
  }
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
