// Messages between ranks, matched by name: a send and a receive of the same name meet, whichever is
// posted first, and in any order relative to other messages.
//
// Both sides announce their transfer: the sender offers, the receiver requests. The sender sends
// once it has the request, and the bytes are received directly into their destination. So no bytes
// wait at a receiver that did not request them, no message waits for space that another one holds,
// and both sides see where they disagree. Messages take turns on the one connection of a pair, a
// fragment each. A receiver with less space than the message is long grants the sender credit.
//
// Ranks of one host exchange all of this through shared memory; bytes on the socket only wake the
// peer. Transfers `in_place` have a ring of their own. Their first fragment is eager: it follows
// the offer immediately and waits in the ring for its receive. If another receive needs the ring
// first, the receiver drops these bytes and the sender sends them again on request, so a receiver
// never buffers them. The bytes of sums stay in the ring until the receiver has consumed them.
#ifndef TF_LIBRA_OPS_LANES_MESSENGER_H_
#define TF_LIBRA_OPS_LANES_MESSENGER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ops/lanes/adaptive_look.h"
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
  std::function<void()> on_thread;  // called once, when the messenger's thread starts
  // Called once, on the messenger's thread, with the error that ends it. It must call End.
  std::function<void(const Status&)> on_failure;
};

struct ScratchBuffer {
  std::unique_ptr<char[]> data;
  size_t num_bytes = 0;
};

class Messenger {
 public:
  // `peers[rank]`, with an invalid own entry. `links` are watched (EnableKeepalive) and outlive
  // this. The thread starts with the first message.
  Messenger(MessengerOptions options, std::vector<Connection> peers,
            const std::vector<Socket>* links);
  ~Messenger() { Join(); }
  // Waits for the end of the thread. Requires End, which another thread may be about to call.
  void Join();

  // Posts all transfers, in this order, or none. Throws if no thread can start. InvalidArgument: a
  // name or a peer is not valid.
  Status Post(const std::vector<TransferPtr>& transfers);
  // Sets Transfer::num_ready. For any thread, including callbacks of the messenger's thread.
  void Release(TransferPtr transfer, size_t num_ready);
  // Frees the first `num_consumed` bytes of a receive `in_place`. For `on_progress` alone.
  void Consume(Transfer* transfer, size_t num_consumed);
  // A buffer for receives, and its return. The last one is kept, because page faults of fresh
  // memory take longer than the copies to it.
  ScratchBuffer TakeScratch(size_t num_bytes);
  void ReturnScratch(ScratchBuffer scratch) noexcept;

  // StalledTransfers until all that was sent has arrived, or its receiver is gone, for at most
  // `seconds`. Says what is still under way; "" is nothing.
  std::string Flush(double seconds) noexcept;

  // Waits for a peer to post a receive whose key begins with Transfer::kRead, for at most
  // `seconds`. Returns its peer and name, each receive once; peer -1 if there was none. After End:
  // its cause.
  Status AwaitRead(double seconds, int* peer, std::string* name);

  // Ends all transfers, present and future, with `cause`. The first call counts.
  void End(const Status& cause) noexcept;

 private:
  struct Peer {
    int rank = 0;
    int fd = -1;
    SharedMemory* memory = nullptr;
    std::string gone;  // why the peer is gone; empty if it is not
    MessageMatcher sends, receives;
    // Receives by id, until complete; without those through the ring of transfers `in_place`.
    std::unordered_map<uint64_t, TransferPtr> requested;
    std::unordered_map<uint64_t, TransferPtr> on_credit;  // sends with a window, until complete
    uint64_t next_id = 0;
    int num_active = 0;  // transfers
    int num_reads = 0;   // active one-sided reads, for which the peer is woken
    bool has_sent = false;
    bool awaits_confirmation = false, has_confirmed = false;  // the flush of this rank
    bool must_confirm = false;

    SendQueue outgoing;
    bool has_turn = false, awaits_room = false;
    bool is_idle = false;  // with memory: nothing moved in its last turn
    std::string ended;     // with memory: why the peer writes no more
    bool is_deaf = false;  // the peer reads no more

    ReceiveParser incoming;

    // Transfers `in_place`, through the second ring of each direction.
    SendQueue outgoing_in_place{true};
    std::unordered_map<uint64_t, TransferPtr> eager;  // sends by id, until requested
    struct Offer {
      TransferPtr receive;  // null until it is posted
      bool is_dropped = false;
    };
    std::unordered_map<uint64_t, Offer> offers;  // of the peer by id, until complete
    uint64_t offers_end = 0;                     // above all ids of offers so far
    bool drops = false;                          // the current fragment
    bool holds_header = false;                   // the last look left the ring's next frame there
    TransferPtr receiving_in_place;              // of the current fragment
    size_t fragment_left = 0;                    // bytes that were not taken
    int num_in_place = 0;                        // active receives

    SendQueue* QueueOf(const Transfer& send) {
      return send.in_place && memory != nullptr ? &outgoing_in_place : &outgoing;
    }
  };

  // Starts the thread unless it runs. Requires mutex_.
  Status Start();
  void Main() noexcept;
  Status WatchPeers();
  // Takes posted transfers, moves bytes, checks for stalls and waits for events.
  Status Turn();
  void StopAwaitingMemory();
  Status TakePosted();
  Status Begin(const TransferPtr& transfer);
  void Continue(const TransferPtr& transfer, size_t num_ready);
  Status Match(Peer* peer, const std::string& key, bool sends);
  void Stream(Peer* peer, const TransferPtr& send);
  void AddFrame(Peer* peer, const std::string& bytes);
  // Schedules a turn of the peer before the thread sleeps.
  void GiveTurn(Peer* peer);
  void AwaitRoom(Peer* peer, bool room);
  Status Write(Peer* peer);
  Status Read(Peer* peer);
  // Moves some bytes through shared memory; without progress, asks for a wake-up.
  Status MoveInMemory(Peer* peer);
  Status WriteInMemory(Peer* peer, bool* moved);
  Status ReadInMemory(Peer* peer, bool* moved);
  Status WriteTo(RingEnd* ring, SendQueue* queue, Peer* peer, bool* moved);
  // Bytes of transfers `in_place` stay in memory until they are consumed. They are copied if the
  // receive says so, or if other such receives from the peer are active, which must not wait for
  // them.
  Status ReadInPlace(Peer* peer, bool* moved);
  Status BeginFragmentInPlace(Peer* peer);
  // Skips a fragment that no receive waits for.
  Status DropFragment(Peer* peer, const Frame& frame, Peer::Offer* offer);
  Step AwaitInPlace(Peer* peer);
  // Returns whether bytes of the peer wait in memory until they are consumed.
  static bool HoldsInPlace(const Peer& peer);
  // Before the thread sleeps: looks for bytes of the peers in memory, and then requests wake-ups.
  Status AwaitIdlePeers();
  // Requests a wake-up by the peer. kProgress: bytes can be moved now.
  Step AwaitInMemory(Peer* peer);
  // Receives a wake-up, or the end of the peer.
  void OnWakeUp(Peer* peer);
  // Handles all complete frames.
  Status HandleAll(Peer* peer);
  Status Handle(Peer* peer, const Frame& frame, const char* text);
  static Status UnexpectedFrame(const Peer& peer);
  Status OnPeerGone(Peer* peer, const std::string& why);
  // The error of a transfer whose peer is gone.
  Status PeerGone(const Peer& peer, const Transfer& transfer) const;
  void ConfirmFlush();
  double SecondsToNextCheck() const;
  Status CheckWaits();
  // "rank 1 to send 'x' (float32 [4])", and what the peer announced instead.
  std::string DescribeWait(const Transfer& transfer) const;
  void Complete(const TransferPtr& transfer, const Status& status = Status()) noexcept;
  void EndAll() noexcept;

  const MessengerOptions options_;
  std::vector<Connection> connections_;
  const std::vector<Socket>* const links_;

  // For the thread alone.
  std::vector<Peer> peers_;
  // Each incomplete transfer is in one of posted_, taken_ and active_.
  std::vector<TransferPtr> taken_;  // from posted_ to active_
  std::unordered_set<TransferPtr> active_;
  size_t num_large_ = 0;      // of active_: those for which no look pays
  size_t num_in_memory_ = 0;  // peers
  AdaptiveLook look_;
  TimePoint next_check_;      // for stalled transfers
  std::vector<int> turns_;    // of peers, by rank
  bool turns_again_ = false;  // takes another turn before it sleeps
  int turns_without_poll_ = 0;
  Status thrown_;  // by a callback at the end of a message

  std::mutex mutex_;  // guards the members below
  Socket poll_;
  EventFd waker_;
  std::thread thread_;
  std::vector<TransferPtr> posted_;
  std::vector<std::pair<TransferPtr, size_t>> released_;
  bool has_ended_ = false;
  ScratchBuffer scratch_;
  bool flushes_ = false, is_flushed_ = false;
  std::string unflushed_ = "messages that its thread has not started";
  std::condition_variable flushed_;
  std::deque<std::pair<int, std::string>> reads_;  // peers and names, for AwaitRead
  std::condition_variable read_;
  Status end_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_MESSENGER_H_
