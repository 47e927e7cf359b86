// Connection of a lane to a peer.
#ifndef TF_LIBRA_OPS_LANES_CONNECTION_H_
#define TF_LIBRA_OPS_LANES_CONNECTION_H_

#include <memory>

#include "ops/lanes/shared_memory.h"
#include "ops/lanes/socket.h"

namespace tf_libra {

// Between ranks of one host what is exchanged goes through memory, if they could share any, and the
// bytes on the socket say nothing but that it is worth a look. For one thread at a time, but for
// Shutdown.
struct Connection {
  Socket socket;
  std::unique_ptr<SharedMemory> memory;  // or none: it all goes over the socket

  bool valid() const { return socket.valid(); }
  void Shutdown() { socket.Shutdown(); }
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_CONNECTION_H_
