// Interrupt and deadline helpers that both sides of mesh setup share.
#ifndef TF_LIBRA_OPS_LANES_CONNECT_POLLING_H_
#define TF_LIBRA_OPS_LANES_CONNECT_POLLING_H_

#include <algorithm>
#include <sstream>
#include <string>

#include "ops/lanes/clock.h"
#include "ops/lanes/mesh.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// Usually all ranks have met before any rank checks on the others.
inline constexpr double kLookSeconds = 1;
// Interval at which a waiting rank checks whether it is to give up.
inline constexpr double kInterruptedSeconds = 0.2;

inline Status Interrupted(const MeshOptions& options) {
  return options.interrupted ? options.interrupted() : Status();
}

// Returns the time of the next check of what goes on during a wait.
inline TimePoint NextLook(const MeshOptions& options, TimePoint deadline) {
  return options.interrupted ? std::min(deadline, After(kInterruptedSeconds)) : deadline;
}

// All ranks have listened, but some may be out of reach: on an interface whose
// address is the same on every host, or behind a firewall that rejects.
inline Status NobodyListens(const MeshOptions& options, int rank, const Status& status) {
  std::ostringstream what;
  what << "rank " << options.rank << ", while ranks connect: nobody listens for rank " << rank
       << " any more: it has ended or given up, or its address is not "
          "reachable from here ("
       << status.message() << ")";
  return Status(StatusCode::kUnavailable, what.str());
}

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_CONNECT_POLLING_H_
