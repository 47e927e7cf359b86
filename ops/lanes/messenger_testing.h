// Helpers for tests of messengers: those of ranks that are threads of one process, and messages.
#ifndef TF_LIBRA_OPS_LANES_MESSENGER_TESTING_H_
#define TF_LIBRA_OPS_LANES_MESSENGER_TESTING_H_

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "ops/lanes/messenger.h"
#include "ops/lanes/testing.h"

namespace tf_libra {
namespace messenger_testing {

// A rank's messenger, which ends with its first failure.
struct Node {
  Mesh mesh;
  MessengerOptions options;
  std::unique_ptr<Messenger> messenger;

  Node(Mesh from, const MessengerOptions& requested) : mesh(std::move(from)), options(requested) {
    options.rank = mesh.rank;
    options.on_failure = [this](const Status& status) { messenger->End(status); };
    messenger = std::make_unique<Messenger>(options, std::move(mesh.messages), &mesh.links);
  }
  ~Node() { messenger->End(Status(StatusCode::kUnavailable, "the test is over")); }
};

using Nodes = std::vector<std::unique_ptr<Node>>;

inline MessengerOptions Patient() {
  MessengerOptions options;
  options.timeout_seconds = testing::kGenerousSeconds;
  return options;
}

inline Nodes MakeNodes(int world_size, const MessengerOptions& options = Patient()) {
  Nodes nodes;
  for (Mesh& mesh : testing::ConnectAll(world_size, 1)) {
    nodes.push_back(std::make_unique<Node>(std::move(mesh), options));
  }
  return nodes;
}

// One side of a message: its memory, and its end.
class Side {
 public:
  Side(Transfer::Way way, int peer, const std::string& name, size_t num_bytes, char fill = '\x55')
      : bytes(num_bytes, fill), transfer(std::make_shared<Transfer>()) {
    transfer->way = way;
    transfer->peer = peer;
    transfer->key = "m" + name;
    transfer->content = "uint8 [" + std::to_string(num_bytes) + "]";
    transfer->data = bytes.data();
    transfer->num_bytes = num_bytes;
    transfer->done = [this](const Status& status) {
      CHECK_EQ(times_done.fetch_add(1), 0);
      end.set_value(status);
    };
  }
  Side(const Side&) = delete;

  void Post(Node* node) { CHECK_EQ(node->messenger->Post({transfer}), testing::IsOk()); }

  Status Wait() {
    auto future = end.get_future();
    const bool ended = future.wait_for(std::chrono::duration<double>(testing::kGenerousSeconds)) ==
                       std::future_status::ready;
    CHECK(ended);
    return ended ? future.get() : Status();
  }

  std::vector<char> bytes;
  std::shared_ptr<Transfer> transfer;
  std::promise<Status> end;
  std::atomic<int> times_done{0};
};

using Sides = std::vector<std::unique_ptr<Side>>;

inline Side* Add(Sides* sides, Transfer::Way way, int peer, const std::string& name,
                 size_t num_bytes, char fill = '\x55') {
  sides->push_back(std::make_unique<Side>(way, peer, name, num_bytes, fill));
  return sides->back().get();
}

constexpr Transfer::Way kSend = Transfer::Way::kSend;
constexpr Transfer::Way kReceive = Transfer::Way::kReceive;

}  // namespace messenger_testing
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_MESSENGER_TESTING_H_
