// Tensors from one rank to another, each by its name: a send and a receive of the same name meet,
// whichever comes first, and whatever else is under way between the two ranks, in any order.
//
// Both sides announce what they have: the sender offers, the receiver requests. When the sender has
// the request it sends, and the bytes go straight to their destination. So no bytes wait at a
// receiver that did not request them, no message waits for room that another message holds, and
// both sides see where they disagree. Messages take turns on the one connection of a pair, a
// fragment each. A receiver that has less room than the message is long grants the sender credit
// for what it has. Between ranks of one host all of it goes through shared memory, and the bytes on
// the socket only wake the other side.
#ifndef TF_LIBRA_OPS_LANES_MESSENGER_H_
#define TF_LIBRA_OPS_LANES_MESSENGER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ops/lanes/clock.h"
#include "ops/lanes/connection.h"
#include "ops/lanes/event_fd.h"
#include "ops/lanes/frame.h"
#include "ops/lanes/message_matcher.h"
#include "ops/lanes/message_transfer.h"
#include "ops/lanes/receive_parser.h"
#include "ops/lanes/send_queue.h"
#include "ops/lanes/shm_ring_io.h"
#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"

namespace tf_libra {

struct MessengerOptions {
  int rank = 0;
  double timeout_seconds = 600;  // without progress of a message
  double stall_warning_seconds = 30;
  std::function<void(const std::string&)> warn;
  std::function<void()> on_thread;  // called once, by the messenger's thread, as it starts
  // Called once, from the messenger's thread, with what makes it impossible to go on. It has to
  // call End.
  std::function<void(const Status&)> on_failure;
};

struct ScratchBuffer {
  std::unique_ptr<char[]> data;
  size_t num_bytes = 0;
};

class Messenger {
 public:
  // `peers[rank]`, own entry invalid; `links`, watched as in EnableKeepalive, outlive this. The
  // thread starts with the first message.
  Messenger(MessengerOptions options, std::vector<Connection> peers,
            const std::vector<Socket>* links);
  ~Messenger() { Join(); }
  // Until the thread has ended. After End, which another thread may be about to call.
  void Join();

  // Posts all of them together, in this order. Throws if no thread can start; then none is posted.
  // InvalidArgument: a name or a peer is not valid, and none is posted.
  Status Post(const std::vector<TransferPtr>& transfers);
  // So many bytes of a transfer are ready by now: as Transfer::num_ready. From any thread; the
  // messenger's own does so in `on_progress`.
  void Release(TransferPtr transfer, size_t num_ready);
  // The receiver has used so many bytes of a receive `in_place`. From `on_progress` alone.
  void Consume(Transfer* transfer, size_t num_consumed);
  // A buffer for a receive, and its way back: the last one is kept, as fresh memory costs more time
  // than what is copied to it.
  ScratchBuffer TakeScratch(size_t num_bytes);
  void ReturnScratch(ScratchBuffer scratch) noexcept;

  // Waits until all that was sent has arrived, or its receiver is gone, for at most `seconds`. Says
  // what is still under way; "" is nothing.
  std::string Flush(double seconds) noexcept;

  // Everything ends with this, now and from now on. The first one stays.
  void End(const Status& cause) noexcept;

 private:
  struct Peer {
    int rank = 0;
    int fd = -1;
    SharedMemory* memory = nullptr;
    std::string gone;  // why nothing more comes; empty: it is there
    Channels sends, receives;
    std::unordered_map<uint64_t, TransferPtr> asked;      // receives, until all has come
    std::unordered_map<uint64_t, TransferPtr> on_credit;  // sends with a window, until all has gone
    uint64_t next_id = 0;
    int num_active = 0;  // transfers with it
    bool has_sent = false;
    bool asked_to_confirm = false, has_confirmed = false;  // by this rank, and it
    bool was_asked_to_confirm = false;

    Outgoing outgoing;
    bool has_turn = false, awaits_room = false;
    std::string ended;     // in memory: why nothing follows what is there
    bool is_deaf = false;  // it takes nothing any more

    Incoming incoming;

    // Transfers `in_place` through the second rings of the memory.
    Outgoing outgoing_in_place{true};
    TransferPtr receiving_in_place;  // whose fragment is next
    size_t fragment_left = 0;        // of it, not taken
    int num_in_place = 0;            // such receives

    Outgoing* QueueOf(const Transfer& send) {
      return send.in_place && memory != nullptr ? &outgoing_in_place : &outgoing;
    }
  };

  void Main() noexcept;
  Status WatchAll();
  // What was posted, what can be moved, what waits too long. An error is the end.
  Status Turn();
  void LookIntoMemory();
  Status TakePosted();
  Status Begin(const TransferPtr& transfer);
  void Continue(const TransferPtr& transfer, size_t num_ready);
  Status Match(Peer* peer, const std::string& key, bool sends);
  void Stream(Peer* peer, const TransferPtr& send);
  void AddFrame(Peer* peer, const std::string& bytes);
  // In what follows, before the thread sleeps.
  void GiveTurn(Peer* peer);
  void Watch(Peer* peer, bool room);
  Status Write(Peer* peer);
  Status Read(Peer* peer);
  // The same in memory that this rank shares with the peer: some, or it rests.
  Status MoveInMemory(Peer* peer);
  Status WriteInMemory(Peer* peer, bool* moved);
  Status ReadInMemory(Peer* peer, bool* moved);
  Status WriteTo(RingEnd* ring, Outgoing* queue, Peer* peer, bool* moved);
  // Of transfers `in_place`: what has come stays in memory until it is consumed, or other such
  // transfers are under way from the peer, which may not wait for it.
  Status ReadInPlace(Peer* peer, bool* moved);
  Status BeginFragmentInPlace(Peer* peer);
  Step AwaitInPlace(Peer* peer);
  // Returns whether bytes of the peer wait in memory for those of other ranks.
  static bool HoldsInPlace(const Peer& peer);
  // Has the peer wake this rank. kProgress: there is something now.
  Step AwaitInMemory(Peer* peer);
  // Takes note of what the peer has sent to wake this rank, or of its end.
  void WakeUp(Peer* peer);
  // All that has come, as far as it is whole.
  Status HandleAll(Peer* peer);
  Status Handle(Peer* peer, const Frame& frame, const char* text);
  static Status Unexpected(const Peer& peer);
  Status Gone(Peer* peer, const std::string& why);
  void Confirm();
  double Patience() const;
  Status CheckWaits();
  // What a transfer waits for, and what the peer has for it instead.
  std::string Wait(const Transfer& transfer) const;
  void Through(const TransferPtr& transfer) noexcept;
  void EndAll() noexcept;

  const MessengerOptions options_;
  std::vector<Connection> connections_;
  const std::vector<Socket>* const links_;

  // Of the thread.
  std::vector<Peer> peers_;
  // What was posted and is not through is in one of posted_, taken_, active_ at any time.
  std::vector<TransferPtr> taken_;  // on their way between the others
  std::unordered_set<TransferPtr> active_;
  TimePoint next_look_;       // after what waits
  std::vector<int> turns_;    // of peers
  bool turns_again_ = false;  // does not sleep before
  int turns_without_poll_ = 0;
  Status thrown_;  // by what follows a message

  std::mutex mutex_;  // guards what follows
  Socket poll_;
  Waker waker_;
  std::thread thread_;
  std::vector<TransferPtr> posted_;
  std::vector<std::pair<TransferPtr, size_t>> released_;
  bool has_ended_ = false;
  ScratchBuffer scratch_;
  bool flushes_ = false, is_flushed_ = false;
  std::string unflushed_ = "what its thread has not come to";
  std::condition_variable flushed_;
  Status end_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_MESSENGER_H_
