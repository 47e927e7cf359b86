// Small messages between all ranks: agreement before training, a plan from rank 0, a farewell.
#ifndef TF_LIBRA_OPS_LANES_CONTROL_H_
#define TF_LIBRA_OPS_LANES_CONTROL_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// Messages are at most `kMaxMessageBytes`; sizes are checked before memory is allocated.
// Every method may be called from any thread; collectives must be called by every rank in the
// same order, from one thread at a time.
class ControlPlane {
 public:
  static constexpr uint32_t kMaxMessageBytes = 64u << 20;

  // `peers[rank]`; the own entry is invalid.
  ControlPlane(int rank, std::vector<Socket> peers);

  // Everybody's message, by rank. Fails with the peer's own words if a peer has given up.
  Status AllGather(const std::string& mine, double timeout_seconds, std::vector<std::string>* all);
  // Rank `root`'s message; `message` is ignored elsewhere.
  Status Broadcast(int root, double timeout_seconds, std::string* message);

  // Tells every peer why this rank gives up, once, without waiting for anyone.
  void Farewell(const std::string& reason);
  // What peers that gave up have said, waiting for at most `seconds`: "" if nobody spoke.
  std::string HearFarewells(double seconds);

  void Shutdown();

 private:
  enum class Kind : uint32_t { kData = 1, kFarewell = 2 };

  Status SendTo(int rank, Kind kind, const std::string& text, TimePoint deadline);
  // `farewell` receives whether the message was one; it is an error all the same.
  Status ReceiveFrom(int rank, TimePoint deadline, std::string* text, bool* farewell = nullptr);

  const int rank_;
  std::vector<Socket> peers_;
  std::mutex collective_mutex_;
  std::mutex farewell_mutex_;
  bool said_farewell_ = false;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_CONTROL_H_
