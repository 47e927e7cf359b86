// Small messages between all ranks: agreement before training, a plan from rank 0, a farewell.
#ifndef TF_LIBRA_OPS_LANES_CONTROL_H_
#define TF_LIBRA_OPS_LANES_CONTROL_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// Called once per collective that has waited for `seconds`, with the ranks that are missing.
struct StallWarning {
  double seconds = 30;
  std::function<void(const std::string& ranks)> warn;
};

// Messages are at most `kMaxMessageBytes`; sizes are checked before memory is allocated.
// Every method may be called from any thread; collectives must be called by every rank in the
// same order, from one thread at a time. A collective that fails is the last one.
class ControlPlane {
 public:
  static constexpr uint32_t kMaxMessageBytes = 64u << 20;

  // `peers[rank]`; the own entry is invalid. `links`, watched as in WatchLink, outlive this.
  ControlPlane(int rank, std::vector<Socket> peers, StallWarning stall = {},
               const std::vector<Socket>* links = nullptr);

  // Everybody's message, by rank. Fails with the peer's own words if a peer has given up, at
  // once if one is gone, and at the deadline naming all that are missing.
  Status AllGather(const std::string& mine, double timeout_seconds, std::vector<std::string>* all);
  // Rank `root`'s message; `message` is ignored elsewhere.
  Status Broadcast(int root, double timeout_seconds, std::string* message);

  // Unavailable, with the first of them, where a peer is gone. Reads nothing, and waits for nobody.
  Status Standing() const;

  // Tells every peer why this rank gives up, once, without waiting for anyone. Nothing is sent
  // from then on.
  void Farewell(const std::string& reason) noexcept;
  // Waits for at most `seconds` until a peer gives up or is gone, and returns what the first one
  // said: "" if all are silent. If a collective waits in another thread, it hears for both.
  std::string HearFarewells(double seconds);

  void Shutdown() noexcept;

 private:
  enum class Kind : uint32_t { kData = 1, kFarewell = 2 };
  struct Header {
    uint32_t magic = 0;
    uint32_t kind = 0;
    uint32_t num_bytes = 0;
  };
  static_assert(sizeof(Header) == 12, "the header goes over the wire as it is");
  // A message as it comes in.
  struct Incoming {
    Header header;
    std::string text;
    size_t received = 0;  // of header and text together
    bool complete = false;
  };
  // What a collective exchanges with one peer: a message each way, or one way only.
  struct Transfer {
    int rank = 0;
    bool receives = false;
    Incoming incoming;
    size_t left_to_send = 0;  // bytes, header included
    bool receiving() const { return receives && !incoming.complete; }
    bool sending() const { return left_to_send > 0; }
  };

  static std::string Packed(Kind kind, const std::string& text);
  static Status CheckSize(const std::string& text);

  // Runs all transfers at once, so that long messages may cross: until all are through, one
  // fails, or the deadline passes.
  Status Run(const std::string& outgoing, double timeout_seconds, std::vector<Transfer>* transfers);
  // Does what is possible with one peer without waiting.
  Status Advance(const std::string& outgoing, Transfer* transfer);
  Status SendSome(const std::string& outgoing, Transfer* transfer);
  // One system call's worth. A farewell is an error with the peer's words.
  Status ReceiveSome(int rank, Incoming* incoming);
  // All that is there, up to the end of the message. Errors become news.
  Status ReceiveAvailable(int rank, Incoming* incoming);

  // Until there is news, or the deadline passes.
  void ListenUntil(TimePoint deadline);

  const int rank_;
  const StallWarning stall_;
  const std::vector<Socket>* const links_;
  std::vector<Socket> peers_;
  std::mutex collective_mutex_;  // whoever holds it reads from the peers

  std::mutex news_mutex_;
  std::condition_variable heard_;
  std::string news_;  // of the first peer that gave up or is gone, guarded by news_mutex_

  std::mutex send_mutex_;  // guards what follows; never held while waiting
  std::vector<bool> within_message_;
  bool said_farewell_ = false;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_CONTROL_H_
