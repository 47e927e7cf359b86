#include "ops/lanes/messenger.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "ops/lanes/messenger_testing.h"
#include "ops/lanes/testing.h"

namespace tf_libra::messenger_test {
namespace {

using messenger_testing::Add;
using messenger_testing::kReceive;
using messenger_testing::kSend;
using messenger_testing::MakeNodes;
using messenger_testing::Node;
using messenger_testing::Nodes;
using messenger_testing::Patient;
using messenger_testing::Side;
using messenger_testing::Sides;
using testing::ConnectAll;
using testing::kGenerousSeconds;
using testing::kShortSeconds;
using testing::OnEveryRank;

TEST_CASE("WhicheverComesFirst") {
  testing::OverAll();
  Nodes nodes = MakeNodes(2);
  for (const size_t num_bytes : {size_t{0}, size_t{1}, size_t{300'000}, size_t{5'000'001}}) {
    for (const bool send_first : {true, false}) {
      Side send(kSend, 1, "x", num_bytes, 'a'), receive(kReceive, 0, "x", num_bytes);
      if (send_first) send.Post(nodes[0].get());
      receive.Post(nodes[1].get());
      if (!send_first) send.Post(nodes[0].get());
      CHECK_EQ(send.Wait(), testing::IsOk());
      CHECK_EQ(receive.Wait(), testing::IsOk());
      CHECK(send.bytes == receive.bytes);
    }
  }
}

// More than sockets hold, both ways concurrently, and neither side reads before all is posted.
TEST_CASE("ManyLargeOnesInAnyOrder") {
  testing::OverAll();
  constexpr int kRanks = 3, kMessages = 12;
  constexpr size_t kBytes = 3 << 20;
  Nodes nodes = MakeNodes(kRanks);
  std::vector<Sides> sides(kRanks);
  OnEveryRank(kRanks, [&](int rank) {
    std::mt19937 random(static_cast<uint32_t>(rank));
    std::vector<Side*> mine;
    for (int peer = 0; peer < kRanks; ++peer) {
      for (int i = 0; peer != rank && i < kMessages; ++i) {
        const std::string name = std::to_string(i);
        const size_t size = kBytes >> i;
        mine.push_back(
            Add(&sides[rank], kSend, peer, name, size, static_cast<char>(rank * 20 + i)));
        mine.push_back(Add(&sides[rank], kReceive, peer, name, size));
      }
    }
    std::shuffle(mine.begin(), mine.end(), random);
    for (Side* side : mine) side->Post(nodes[rank].get());
    for (Side* side : mine) CHECK_EQ(side->Wait(), testing::IsOk());
    for (Side* side : mine) {
      if (side->transfer->way == kSend) continue;
      const int i = std::stoi(side->transfer->name());
      const char expected = static_cast<char>(side->transfer->peer * 20 + i);
      CHECK_EQ(std::count(side->bytes.begin(), side->bytes.end(), expected),
               static_cast<std::ptrdiff_t>(side->bytes.size()));
    }
  });
}

TEST_CASE("SameNameInTheOrderOfPosting") {
  testing::OverAll();
  Nodes nodes = MakeNodes(2);
  Sides sends, receives;
  for (int i = 0; i < 50; ++i) {
    Add(&sends, kSend, 1, "x", 1000, static_cast<char>(i));
    Add(&receives, kReceive, 0, "x", 1000);
  }
  for (size_t i = 0; i < 25; ++i) sends[i]->Post(nodes[0].get());
  for (auto& side : receives) side->Post(nodes[1].get());
  for (size_t i = 25; i < 50; ++i) sends[i]->Post(nodes[0].get());
  for (size_t i = 0; i < 50; ++i) {
    CHECK_EQ(receives[i]->Wait(), testing::IsOk());
    CHECK_EQ(sends[i]->Wait(), testing::IsOk());
    CHECK_EQ(static_cast<int>(receives[i]->bytes[999]), static_cast<int>(i));
  }
}

TEST_CASE("SendThatIsNotReadyKeepsItsPlace") {
  testing::OverAll();
  Nodes nodes = MakeNodes(2);
  Side first(kSend, 1, "x", 10, '1'), second(kSend, 1, "x", 10, '2');
  Side other(kSend, 1, "y", 10, '3');
  Side a(kReceive, 0, "x", 10), b(kReceive, 0, "x", 10), c(kReceive, 0, "y", 10);
  first.transfer->num_ready = 0;
  CHECK_EQ(nodes[0]->messenger->Post({first.transfer, second.transfer, other.transfer}),
           testing::IsOk());
  CHECK_EQ(nodes[1]->messenger->Post({a.transfer, b.transfer, c.transfer}), testing::IsOk());
  CHECK_EQ(c.Wait(), testing::IsOk());
  CHECK_EQ(b.Wait(), testing::IsOk());
  CHECK_EQ(b.bytes[0], '2');
  CHECK_EQ(a.times_done.load(), 0);
  nodes[0]->messenger->Release(first.transfer, 10);
  CHECK_EQ(a.Wait(), testing::IsOk());
  CHECK_EQ(a.bytes[0], '1');
  for (Side* side : {&first, &second, &other}) CHECK_EQ(side->Wait(), testing::IsOk());
}

// The sender is never further ahead than the receiver has room, whatever is ready.
TEST_CASE("WindowHoldsTheSenderBack") {
  testing::OverAll();
  constexpr size_t kBytes = 1'000'000, kWindow = 64 << 10;
  Nodes nodes = MakeNodes(2);
  Side send(kSend, 1, "x", kBytes), receive(kReceive, 0, "x", kBytes);
  for (size_t i = 0; i < kBytes; ++i) send.bytes[i] = static_cast<char>(i % 251);
  std::vector<char> ring(kWindow), taken;
  send.transfer->window = receive.transfer->window = receive.transfer->ring_bytes = kWindow;
  receive.transfer->data = ring.data();
  receive.transfer->on_progress = [&, one = std::weak_ptr(receive.transfer)](size_t num_moved) {
    CHECK(num_moved - taken.size() <= kWindow);
    // Some at a time, and the last of it in any case.
    if (num_moved - taken.size() < kWindow / 4 && num_moved < kBytes) return;
    while (taken.size() < num_moved) taken.push_back(ring[taken.size() % kWindow]);
    nodes[1]->messenger->Release(one.lock(), num_moved + kWindow);
  };
  // A small one has its turn meanwhile.
  Side small(kSend, 1, "y", 10, 'y'), wanted(kReceive, 0, "y", 10);
  CHECK_EQ(nodes[0]->messenger->Post({send.transfer, small.transfer}), testing::IsOk());
  CHECK_EQ(nodes[1]->messenger->Post({receive.transfer, wanted.transfer}), testing::IsOk());
  for (Side* side : {&send, &receive, &small, &wanted}) CHECK_EQ(side->Wait(), testing::IsOk());
  CHECK(taken == send.bytes);
  CHECK_EQ(wanted.bytes[9], 'y');
}

// Who waits for nothing but its own room is not late; the one that waits for it is.
TEST_CASE("WindowThatIsNeverReleasedIsGivenUpByTheSender") {
  testing::OverAll();
  MessengerOptions options = Patient();
  options.timeout_seconds = kShortSeconds;
  Nodes nodes = MakeNodes(2, options);
  Side send(kSend, 1, "x", 1000), receive(kReceive, 0, "x", 1000);
  send.transfer->window = receive.transfer->window = 100;
  receive.Post(nodes[1].get());
  send.Post(nodes[0].get());
  CHECK_EQ(send.Wait(),
           testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank 1 to receive 'x'"));
  CHECK_EQ(receive.Wait(), testing::StatusIs(StatusCode::kUnavailable, "rank 0 to send 'x'"));
}

// Both ranks get the error, and both ranks are named.
TEST_CASE("WhatDiffersIsSaidOnBothSides") {
  testing::OverAll();
  for (const bool send_first : {true, false}) {
    Nodes nodes = MakeNodes(2);
    Side send(kSend, 1, "h", 16), receive(kReceive, 0, "h", 16);
    send.transfer->content = "float32 [4]";
    receive.transfer->content = "float64 [2]";
    if (send_first) send.Post(nodes[0].get());
    receive.Post(nodes[1].get());
    if (!send_first) send.Post(nodes[0].get());
    const Status at_sender = send.Wait(), at_receiver = receive.Wait();
    // The first rank to fail may take the other along.
    const bool both = at_sender.code() == StatusCode::kFailedPrecondition &&
                      at_receiver.code() == StatusCode::kFailedPrecondition;
    const bool one = at_sender.code() == StatusCode::kFailedPrecondition ||
                     at_receiver.code() == StatusCode::kFailedPrecondition;
    CHECK((both || one));
    const Status& failed =
        at_sender.code() == StatusCode::kFailedPrecondition ? at_sender : at_receiver;
    for (const char* part : {"'h' is ", "float32 [4]", "float64 [2]", "at rank "}) {
      CHECK_EQ(failed.message(), testing::Contains(part));
    }
  }
}

TEST_CASE("DeadlineSaysWhatIsThereInstead") {
  testing::OverAll();
  MessengerOptions options = Patient();
  Nodes nodes;
  for (Mesh& mesh : ConnectAll(2, 1)) {
    options.timeout_seconds = mesh.rank == 1 ? 2 : kGenerousSeconds;  // to hear of the other
    nodes.push_back(std::make_unique<Node>(std::move(mesh), options));
  }
  Side send(kSend, 1, "layer_1/output", 16), receive(kReceive, 0, "layer_2/output", 16);
  send.Post(nodes[0].get());
  receive.Post(nodes[1].get());
  const Status status = receive.Wait();
  CHECK_EQ(status,
           testing::StatusIs(StatusCode::kDeadlineExceeded, "rank 0 to send 'layer_2/output'"));
  CHECK_EQ(status.message(),
           testing::Contains("which sends 'layer_1/output' (uint8 [16]) instead"));
  CHECK_EQ(send.Wait(),
           testing::StatusIs(StatusCode::kUnavailable, "rank 1 to receive 'layer_1/output'"));
}

TEST_CASE("SendThatNobodyReceivesIsGivenUp") {
  testing::OverAll();
  MessengerOptions options = Patient();
  options.timeout_seconds = kShortSeconds;
  Nodes nodes = MakeNodes(2, options);
  Side send(kSend, 1, "h", 1 << 20);
  send.Post(nodes[0].get());
  CHECK_EQ(send.Wait(),
           testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank 1 to receive 'h'"));
}

TEST_CASE("StallIsWarnedAbout") {
  testing::OverAll();
  std::promise<std::string> warned;
  std::atomic<bool> is_first{true};  // others may wait as long, once it is sent
  MessengerOptions options = Patient();
  options.stall_warning_seconds = 0.05;
  options.warn = [&](const std::string& text) {
    if (is_first.exchange(false)) warned.set_value(text);
  };
  Nodes nodes = MakeNodes(2, options);
  Side receive(kReceive, 0, "h", 16), send(kSend, 1, "h", 16);
  receive.Post(nodes[1].get());
  const std::string text = warned.get_future().get();
  CHECK_EQ(text, testing::Contains("rank 1 has waited 0.05 s for rank 0 to send 'h' (uint8 [16])"));
  send.Post(nodes[0].get());
  CHECK_EQ(receive.Wait(), testing::IsOk());
  CHECK_EQ(send.Wait(), testing::IsOk());
}

TEST_CASE("PeerThatLeavesIsNoticedByWhoeverNeedsIt") {
  testing::OverAll();
  Nodes nodes = MakeNodes(3);
  Side before(kSend, 1, "x", 10), after(kReceive, 0, "x", 10);
  before.Post(nodes[0].get());
  after.Post(nodes[1].get());
  CHECK_EQ(before.Wait(), testing::IsOk());
  CHECK_EQ(after.Wait(), testing::IsOk());
  Side waiting(kReceive, 2, "y", 10);
  waiting.Post(nodes[0].get());
  nodes[2].reset();
  CHECK_EQ(waiting.Wait(), testing::StatusIs(StatusCode::kUnavailable, "rank 2 is gone"));
  // Rank 1 has nothing to do with rank 2, and goes on until it wants to.
  Side late(kSend, 2, "z", 10);
  late.Post(nodes[1].get());
  CHECK_EQ(late.Wait(), testing::StatusIs(StatusCode::kUnavailable, "rank 2 to receive 'z'"));
}

TEST_CASE("EndEndsWhatIsUnderWay") {
  testing::OverAll();
  Nodes nodes = MakeNodes(2);
  Side receive(kReceive, 0, "x", 10), send(kSend, 0, "y", 10);
  CHECK_EQ(nodes[1]->messenger->Post({receive.transfer, send.transfer}), testing::IsOk());
  nodes[1]->messenger->End(Status(StatusCode::kUnavailable, "enough"));
  CHECK_EQ(receive.Wait(), testing::StatusIs(StatusCode::kUnavailable, "enough"));
  CHECK_EQ(send.Wait(), testing::StatusIs(StatusCode::kUnavailable, "enough"));
  Side late(kReceive, 0, "x", 10);
  late.Post(nodes[1].get());
  CHECK_EQ(late.Wait(), testing::StatusIs(StatusCode::kUnavailable, "enough"));
}

TEST_CASE("WhatCannotBePosted") {
  testing::OverAll();
  Nodes nodes = MakeNodes(2);
  const auto refused = [&](int peer, const std::string& name, const std::string& part) {
    Side side(kSend, peer, name, 1);
    CHECK_EQ(nodes[0]->messenger->Post({side.transfer}),
             testing::StatusIs(StatusCode::kInvalidArgument, part));
    CHECK_EQ(side.times_done.load(), 0);
  };
  refused(0, "x", "another rank from 0 to 1, got 0");
  refused(2, "x", "another rank from 0 to 1, got 2");
  refused(-1, "x", "got -1");
  refused(1, "", "a message's name");
  refused(1, std::string("a\0b", 3), "a message's name");
  refused(1, std::string(9000, 'x'), "a message's name");
  Side send(kSend, 1, "x", 1), receive(kReceive, 0, "x", 1);
  send.Post(nodes[0].get());
  receive.Post(nodes[1].get());
  CHECK_EQ(receive.Wait(), testing::IsOk());
  CHECK_EQ(send.Wait(), testing::IsOk());
}

TEST_CASE("FlushWaitsForWhatWasSent") {
  testing::OverAll();
  Nodes nodes = MakeNodes(2);
  CHECK_EQ(nodes[0]->messenger->Flush(kGenerousSeconds), std::string());  // nothing was
  Side send(kSend, 1, "h", 4 << 20, 'x'), receive(kReceive, 0, "h", 4 << 20);
  send.Post(nodes[0].get());
  // On a busy machine the messenger's thread comes to it late; never does it say that nothing is
  // left.
  std::string left = nodes[0]->messenger->Flush(0);
  CHECK(!left.empty());
  for (int i = 0; i < 3000 && left != "'h' to rank 1"; ++i) left = nodes[0]->messenger->Flush(0.01);
  CHECK_EQ(left, std::string("'h' to rank 1"));
  receive.Post(nodes[1].get());
  CHECK_EQ(nodes[0]->messenger->Flush(kGenerousSeconds), std::string());
  CHECK_EQ(send.Wait(), testing::IsOk());
  nodes[0].reset();  // what was sent is there
  CHECK_EQ(receive.Wait(), testing::IsOk());
  CHECK(std::all_of(receive.bytes.begin(), receive.bytes.end(),
                    [](char byte) { return byte == 'x'; }));
}

TEST_CASE("WhatFollowsMayThrow") {
  testing::OverAll();
  Nodes nodes = MakeNodes(2);
  Side send(kSend, 1, "x", 1), receive(kReceive, 0, "x", 1), next(kReceive, 0, "y", 1);
  receive.transfer->done = [](const Status&) { throw std::runtime_error("no"); };
  send.Post(nodes[0].get());
  CHECK_EQ(nodes[1]->messenger->Post({receive.transfer, next.transfer}), testing::IsOk());
  CHECK_EQ(send.Wait(), testing::IsOk());
  CHECK_EQ(next.Wait(),
           testing::StatusIs(StatusCode::kInternal, "the callback of a message failed: no"));
}

}  // namespace
}  // namespace tf_libra::messenger_test
