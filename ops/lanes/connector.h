// Outgoing connections of mesh setup: every rank connects to all lower ranks and proves its
// identity (handshake.h).
#ifndef TF_LIBRA_OPS_LANES_CONNECTOR_H_
#define TF_LIBRA_OPS_LANES_CONNECTOR_H_

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/lanes/clock.h"
#include "ops/lanes/mesh.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// Connects to all lower ranks, several at a time, while others go on.
class MeshConnector {
 public:
  // Everything outlives this. Of `mesh` only what lower ranks have is touched.
  MeshConnector(const MeshOptions& options, TimePoint deadline, Mesh* mesh);
  ~MeshConnector();

  // Connects before it returns if there are few peers, or no thread can be started.
  void Start();

  bool has_failed() const { return failed_; }
  bool is_over() const { return num_connected_ == options_.rank || failed_; }

  // Until it is over.
  Status Wait();

 private:
  void Run() noexcept;
  Status ConnectToRank(int rank, Status* unshared);

  MeshOptions options_;
  const TimePoint deadline_;
  Mesh* const mesh_;
  std::vector<std::thread> threads_;
  std::atomic<int> next_{0}, num_connected_{0};
  std::atomic<bool> stops_{false}, failed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  Status status_, unshared_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_CONNECTOR_H_
