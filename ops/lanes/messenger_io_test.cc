// Tests of transfers `in_place`: their bytes stay in shared memory until they are consumed, or are
// copied as they come.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "ops/lanes/direct_all_reduce_header.h"
#include "ops/lanes/messenger.h"
#include "ops/lanes/testing.h"

namespace tf_libra::messenger_io_test {
namespace {

using testing::ConnectAll;
using testing::kGenerousSeconds;

struct Node {
  Mesh mesh;
  std::unique_ptr<Messenger> messenger;

  explicit Node(Mesh from, double timeout_seconds = kGenerousSeconds,
                std::function<void()> on_stall = nullptr)
      : mesh(std::move(from)) {
    MessengerOptions options;
    options.rank = mesh.rank;
    options.timeout_seconds = timeout_seconds;
    if (on_stall) {
      options.stall_warning_seconds = testing::kShortSeconds;
      options.warn = [on_stall](const std::string&) { on_stall(); };
    }
    options.on_failure = [this](const Status& status) { messenger->End(status); };
    messenger = std::make_unique<Messenger>(options, std::move(mesh.messages), &mesh.links);
  }
  ~Node() { messenger->End(Status(StatusCode::kUnavailable, "the test is over")); }
};

// A transfer `in_place` and its memory. A receive takes its bytes with Take, or copies them all if
// its window is unlimited.
struct Side {
  std::vector<char> bytes, taken;
  TransferPtr transfer = std::make_shared<Transfer>();
  std::promise<Status> end;

  Side(Transfer::Way way, int peer, const std::string& name, size_t num_bytes, size_t window)
      : bytes(way == Transfer::Way::kSend ? num_bytes : std::min(window, num_bytes)) {
    for (size_t i = 0; way == Transfer::Way::kSend && i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>((i + name[0]) % 251);
    }
    transfer->way = way;
    transfer->peer = peer;
    transfer->key = "c" + name;
    transfer->content = "uint8";
    transfer->data = bytes.data();
    transfer->num_bytes = num_bytes;
    transfer->window = window;
    transfer->copies = window == SIZE_MAX;
    if (way == Transfer::Way::kReceive) transfer->ring_bytes = window;
    transfer->in_place = true;
    transfer->done = [this](const Status& status) { end.set_value(status); };
  }
  Side(const Side&) = delete;

  // All that has come.
  void Take(Messenger* messenger) {
    while (taken.size() < transfer->num_moved) {
      const size_t count = transfer->num_at(taken.size());
      const char* const at = transfer->at(taken.size());
      taken.insert(taken.end(), at, at + count);
    }
    messenger->Consume(transfer.get(), taken.size());
    messenger->Release(transfer, taken.size() + transfer->window);
  }

  Status Wait() {
    auto future = end.get_future();
    const bool ended = future.wait_for(std::chrono::duration<double>(kGenerousSeconds)) ==
                       std::future_status::ready;
    CHECK(ended);
    return ended ? future.get() : Status();
  }
};

constexpr Transfer::Way kSend = Transfer::Way::kSend;
constexpr Transfer::Way kReceive = Transfer::Way::kReceive;

TEST_CASE("BytesArriveWhole") {
  testing::OverAll();
  std::vector<Mesh> meshes = ConnectAll(2, 1);
  Node first(std::move(meshes[0])), second(std::move(meshes[1]));
  for (const size_t num_bytes : {0, 1, 63, 300'000, 5'000'001}) {
    Side send(kSend, 1, "x", num_bytes, 64 << 10), receive(kReceive, 0, "x", num_bytes, 64 << 10);
    receive.transfer->on_progress = [&](size_t) { receive.Take(second.messenger.get()); };
    CHECK_EQ(second.messenger->Post({receive.transfer}), testing::IsOk());
    CHECK_EQ(first.messenger->Post({send.transfer}), testing::IsOk());
    CHECK_EQ(send.Wait(), testing::IsOk());
    CHECK_EQ(receive.Wait(), testing::IsOk());
    CHECK(receive.taken == send.bytes);
  }
}

// As sends of the engine: no bytes wait to be consumed. A fragment fills more than the ring, and
// each rank sends and receives concurrently.
TEST_CASE("CopiedBytesArriveWhole") {
  testing::OverAll();
  constexpr int kRanks = 3;
  std::vector<std::unique_ptr<Node>> nodes;
  for (Mesh& mesh : ConnectAll(kRanks, 1)) nodes.push_back(std::make_unique<Node>(std::move(mesh)));
  for (const size_t num_bytes : {0, 1, 300'000, 5'000'001}) {
    std::vector<std::unique_ptr<Side>> sends, receives;
    for (int rank = 0; rank < kRanks; ++rank) {
      const int next = (rank + 1) % kRanks, previous = (rank + kRanks - 1) % kRanks;
      const std::string name(1, static_cast<char>('a' + rank));
      sends.push_back(std::make_unique<Side>(kSend, next, name, num_bytes, SIZE_MAX));
      const std::string theirs(1, static_cast<char>('a' + previous));
      receives.push_back(std::make_unique<Side>(kReceive, previous, theirs, num_bytes, SIZE_MAX));
      // Either may come first.
      std::vector<TransferPtr> both = {sends.back()->transfer, receives.back()->transfer};
      if (rank == 1) std::swap(both[0], both[1]);
      for (const auto& one : both) CHECK_EQ(nodes[rank]->messenger->Post({one}), testing::IsOk());
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      CHECK_EQ(receives[rank]->Wait(), testing::IsOk());
      CHECK_EQ(sends[rank]->Wait(), testing::IsOk());
      CHECK(receives[rank]->bytes == sends[(rank + kRanks - 1) % kRanks]->bytes);
    }
  }
}

// The first transfer is consumed only after the second one, whose bytes lie behind its own.
TEST_CASE("TransfersDoNotWaitForEachOther") {
  testing::OverAll();
  constexpr size_t kBytes = 2'000'000, kWindow = 1 << 20;
  std::vector<Mesh> meshes = ConnectAll(2, 1);
  Node first(std::move(meshes[0])), second(std::move(meshes[1]));
  Side held(kSend, 1, "held", kBytes, kWindow), passing(kSend, 1, "passing", kBytes, kWindow);
  Side a(kReceive, 0, "held", kBytes, kWindow), b(kReceive, 0, "passing", kBytes, kWindow);
  Messenger* const messenger = second.messenger.get();
  bool is_released = false;
  a.transfer->on_progress = [&](size_t) {
    if (is_released) a.Take(messenger);
  };
  b.transfer->on_progress = [&](size_t num_moved) {
    b.Take(messenger);
    if (num_moved < kBytes) return;
    is_released = true;
    a.Take(messenger);
  };
  CHECK_EQ(messenger->Post({a.transfer}), testing::IsOk());
  CHECK_EQ(first.messenger->Post({held.transfer, passing.transfer}), testing::IsOk());
  CHECK_EQ(messenger->Post({b.transfer}), testing::IsOk());
  for (Side* side : {&held, &passing, &a, &b}) CHECK_EQ(side->Wait(), testing::IsOk());
  CHECK(a.taken == held.bytes);
  CHECK(b.taken == passing.bytes);
}

// The bytes of the first send lie in front of those of the second one, which alone is received.
TEST_CASE("EagerBytesMakeRoomForOthers") {
  testing::OverAll();
  for (const size_t num_bytes : {1'000, 2'000'000}) {
    std::vector<Mesh> meshes = ConnectAll(2, 1);
    Node first(std::move(meshes[0])), second(std::move(meshes[1]));
    Messenger* const messenger = second.messenger.get();
    Side early(kSend, 1, "early", num_bytes, 64 << 10), late(kSend, 1, "late", num_bytes, 64 << 10);
    Side a(kReceive, 0, "early", num_bytes, 64 << 10), b(kReceive, 0, "late", num_bytes, 64 << 10);
    for (Side* side : {&a, &b}) {
      side->transfer->on_progress = [side, messenger](size_t) { side->Take(messenger); };
    }
    CHECK_EQ(first.messenger->Post({early.transfer, late.transfer}), testing::IsOk());
    CHECK_EQ(messenger->Post({b.transfer}), testing::IsOk());
    CHECK_EQ(b.Wait(), testing::IsOk());
    CHECK_EQ(late.Wait(), testing::IsOk());
    CHECK_EQ(messenger->Post({a.transfer}), testing::IsOk());
    CHECK_EQ(a.Wait(), testing::IsOk());
    CHECK_EQ(early.Wait(), testing::IsOk());
    CHECK(a.taken == early.bytes);
    CHECK(b.taken == late.bytes);
  }
}

// The sender has left: what it wrote before is still used.
TEST_CASE("BytesOutliveTheirSender") {
  testing::SetRendezvousHost(kUnixHost, true);
  std::vector<Mesh> meshes = ConnectAll(2, 1);
  auto first = std::make_unique<Node>(std::move(meshes[0]));
  Node second(std::move(meshes[1]));
  Side send(kSend, 1, "x", 1000, 1000), receive(kReceive, 0, "x", 1000, 1000);
  receive.transfer->on_progress = [&](size_t) { receive.Take(second.messenger.get()); };
  CHECK_EQ(second.messenger->Post({receive.transfer}), testing::IsOk());
  CHECK_EQ(first->messenger->Post({send.transfer}), testing::IsOk());
  CHECK_EQ(send.Wait(), testing::IsOk());
  first.reset();
  CHECK_EQ(receive.Wait(), testing::IsOk());
  CHECK(receive.taken == send.bytes);
}

// A rank whose peer is this test, and writes to the memory by itself.
class Hostile {
 public:
  explicit Hostile(double timeout_seconds = testing::kGenerousSeconds,
                   std::function<void()> on_stall = nullptr, size_t num_bytes = 16)
      : meshes_(ConnectAll(2, 1)),
        peer_(std::move(meshes_[0].messages[1])),
        receive_(kReceive, 0, "x", num_bytes, num_bytes) {
    REQUIRE(peer_.memory != nullptr);
    node_ = std::make_unique<Node>(std::move(meshes_[1]), timeout_seconds, std::move(on_stall));
    receive_.transfer->on_progress = [this](size_t) { receive_.Take(node_->messenger.get()); };
    CHECK_EQ(node_->messenger->Post({receive_.transfer}), testing::IsOk());
  }

  void Write(const Frame& frame, size_t num_bytes, bool wakes = true) {
    RingEnd* const ring = peer_.memory->outgoing_sums();
    const size_t size = BytesToHeaderEnd(ring->position());
    std::memcpy(ring->here() + size - kHeaderRoom, &frame, sizeof(frame));
    std::memset(ring->here() + size, 'x', num_bytes);
    static_cast<void>(ring->Advance(size + num_bytes));
    if (wakes) Wake();
  }
  void WriteTooMuch() {
    RingEnd* const ring = peer_.memory->outgoing_sums();
    static_cast<void>(ring->Advance(2 * ring->capacity()));
    Wake();
  }
  // Announces what this rank receives, or another message.
  void Offer(uint64_t id = 0, const std::string& key = "cx") {
    Frame offer;
    offer.kind = Frame::kOffer;
    offer.id = id;
    offer.num_bytes = receive_.transfer->num_bytes;
    Send(WithText(offer, key, "uint8"));
  }
  void Send(const std::string& bytes) {
    CHECK_EQ(testing::Send(peer_, bytes.data(), bytes.size()), testing::IsOk());
  }
  Side* receive() { return &receive_; }

 private:
  void Wake() { CHECK_EQ(send(peer_.socket.fd(), "", 1, MSG_NOSIGNAL), 1); }

  std::vector<Mesh> meshes_;
  const Connection peer_;
  Side receive_;
  std::unique_ptr<Node> node_;
};

Frame DataFrame(uint64_t id, uint64_t num_bytes) {
  Frame frame;
  frame.kind = Frame::kData;
  frame.id = id;
  frame.num_bytes = num_bytes;
  return frame;
}

// The two rings have no common order.
TEST_CASE("BytesMayComeBeforeTheirOffer") {
  testing::SetRendezvousHost(kUnixHost, true);
  Hostile peer;
  peer.Write(DataFrame(0, 16), 16);
  peer.Offer();
  CHECK_EQ(peer.receive()->Wait(), testing::IsOk());
  CHECK(peer.receive()->taken == std::vector<char>(16, 'x'));
}

// They come after the receiver has looked for them, and before it requests to be woken: the warning
// is in between. They are too many for another look.
TEST_CASE("BytesThatComeBeforeSleepAreSeen") {
  testing::SetRendezvousHost(kUnixHost, true);
  constexpr size_t kBytes = 2 * AdaptiveLook::kMostBytes;
  std::promise<Hostile*> made;
  const auto write = [&] { made.get_future().get()->Write(DataFrame(0, kBytes), kBytes, false); };
  Hostile peer(kGenerousSeconds, write, kBytes);
  peer.Offer();
  made.set_value(&peer);
  CHECK_EQ(peer.receive()->Wait(), testing::IsOk());
}

TEST_CASE("InvalidBytesAreAnError") {
  testing::SetRendezvousHost(kUnixHost, true);
  Frame garbage = DataFrame(0, 16), ask = garbage;
  garbage.magic = 1;
  ask.kind = Frame::kConfirm;
  for (const Frame& frame : {DataFrame(2, 16), DataFrame(3, 17), garbage, ask}) {
    Hostile peer;
    peer.Offer(3);
    peer.Write(frame, 16);
    CHECK_EQ(peer.receive()->Wait(), testing::StatusIs(StatusCode::kFailedPrecondition, "rank 0 "));
  }
  Hostile peer;
  peer.WriteTooMuch();
  CHECK_EQ(peer.receive()->Wait(),
           testing::StatusIs(StatusCode::kFailedPrecondition, "rank 0 wrote an invalid position"));
}

// Bytes of a message that has no receive are dropped once, and one fragment at most.
TEST_CASE("EndlessEagerBytesAreAnError") {
  testing::SetRendezvousHost(kUnixHost, true);
  for (const bool is_long : {false, true}) {
    Hostile peer;
    peer.Offer(0, "cother");
    peer.Offer(1);
    peer.Write(DataFrame(0, is_long ? SendQueue::kFragmentBytes + 1 : 16), 16);
    if (!is_long) peer.Write(DataFrame(0, 16), 16);
    CHECK_EQ(peer.receive()->Wait(), testing::StatusIs(StatusCode::kFailedPrecondition, "rank 0 "));
  }
}

TEST_CASE("OffersWithoutRisingIdsAreAnError") {
  testing::SetRendezvousHost(kUnixHost, true);
  for (const uint64_t second : {uint64_t{4}, uint64_t{3}, UINT64_MAX}) {
    Hostile peer;
    peer.Offer(4, "cother");
    peer.Offer(second);
    CHECK_EQ(peer.receive()->Wait(), testing::StatusIs(StatusCode::kFailedPrecondition, "rank 0 "));
  }
}

// Bytes whose offer never comes are awaited as if nothing had come.
TEST_CASE("BytesWithoutOfferEndAfterTheTimeout") {
  testing::SetRendezvousHost(kUnixHost, true);
  Hostile peer(testing::kShortSeconds);
  peer.Write(DataFrame(7, 16), 16);
  CHECK_EQ(peer.receive()->Wait(),
           testing::StatusIs(StatusCode::kDeadlineExceeded, "rank 0 to send 'x'"));
}

// As the answer of a peer that drops eager bytes, without any.
TEST_CASE("DropOfUnknownBytesIsAnError") {
  testing::SetRendezvousHost(kUnixHost, true);
  Hostile peer;
  Frame dropped;
  dropped.kind = Frame::kDropped;
  peer.Send(ToBytes(dropped));
  CHECK_EQ(peer.receive()->Wait(), testing::StatusIs(StatusCode::kFailedPrecondition, "rank 0 "));
}

}  // namespace
}  // namespace tf_libra::messenger_io_test
