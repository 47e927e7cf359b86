#include "ops/lanes/shm_ring_io.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::shm_ring_io_test {
namespace {

// Both sides of shared memory, and of the sockets that accompany it.
struct Sides {
  static constexpr size_t kCapacity = 64 << 10;
  std::unique_ptr<SharedMemory> one, other;
  Socket ours, theirs;

  Sides() {
    Socket file;
    CHECK_EQ(SharedMemory::Make(kCapacity, &one, &file), testing::IsOk());
    CHECK_EQ(SharedMemory::Take(file, kCapacity, &other), testing::IsOk());
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    ours = Socket(fds[0]);
    theirs = Socket(fds[1]);
  }

  bool TheirsWasWoken() const {
    char byte;
    return recv(theirs.fd(), &byte, 1, MSG_DONTWAIT) == 1;
  }
};

TEST_CASE("TensorsGoThroughInParts") {
  const Sides sides;
  std::vector<char> input(100'000), output(input.size());
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<char>(i * 7);
  const size_t half = input.size() / 2;
  const Buffers sent({{input.data(), input.data(), half},
                      {input.data() + half, input.data() + half, input.size() - half}});
  const Buffers received({{output.data(), output.data(), output.size()}});
  size_t num_sent = 0, num_received = 0;
  while (num_received < input.size()) {
    const Step out = CopyThroughRing(
        sent, {0, input.size()}, input.size(), 9999, 1, sides.ours.fd(),
        sides.one->outgoing_parts(), &num_sent,
        [](const char* from, char*, char* ring, size_t size) { std::memcpy(ring, from, size); });
    const Step in = CopyThroughRing(
        received, {0, output.size()}, output.size(), 7777, 1, sides.theirs.fd(),
        sides.other->incoming_parts(), &num_received,
        [](const char*, char* to, char* ring, size_t size) { std::memcpy(to, ring, size); });
    CHECK(out == (num_sent < input.size() ? Step::kProgress : out));
    CHECK(in == Step::kProgress);
  }
  CHECK(output == input);
  size_t none = 0;
  CHECK(LookIntoRing(sides.other->incoming_parts(), &none) == Step::kBlocked);
}

TEST_CASE("NothingBeyondTheLimit") {
  const Sides sides;
  std::vector<char> data(100);
  const Buffers buffers({{data.data(), data.data(), data.size()}});
  const auto copy = [](const char*, char*, char*, size_t) {};
  size_t moved = 0;
  RingEnd* const end = sides.one->outgoing_parts();
  CHECK(CopyThroughRing(buffers, {0, 100}, 60, 1000, 1, sides.ours.fd(), end, &moved, copy) ==
        Step::kProgress);
  CHECK_EQ(moved, 60u);
  CHECK(CopyThroughRing(buffers, {0, 100}, 60, 1000, 1, sides.ours.fd(), end, &moved, copy) ==
        Step::kBlocked);
  CHECK_EQ(end->position(), 60u);
}

TEST_CASE("HeadersComeWhole") {
  const Sides sides;
  ExchangeHeader header, received;
  header.sequence = 11;
  size_t num_sent = 0, num_received = 0;
  const auto take = [&](char* ring) { std::memcpy(&received, ring, sizeof(received)); };
  RingEnd* const in = sides.other->incoming_parts();
  CHECK(MoveHeaderThroughRing(in, &num_received, take) == Step::kBlocked);
  CHECK_EQ(num_received, 0u);
  CHECK(MoveHeaderThroughRing(sides.one->outgoing_parts(), &num_sent, [&](char* ring) {
          std::memcpy(ring, &header, sizeof(header));
        }) == Step::kProgress);
  CHECK(MoveHeaderThroughRing(in, &num_received, take) == Step::kProgress);
  CHECK_EQ(num_received, sizeof(ExchangeHeader));
  CHECK_EQ(received.sequence, 11u);
}

TEST_CASE("WhoWaitsIsWoken") {
  const Sides sides;
  RingEnd* const in = sides.other->incoming_parts();
  RingEnd* const out = sides.one->outgoing_parts();
  CHECK(AwaitRing(in, 0) == Step::kBlocked);
  AdvanceRing(sides.ours.fd(), out, 10);
  CHECK(!sides.TheirsWasWoken());
  CHECK(AwaitRing(in, 10) == Step::kProgress);
  CHECK(AwaitRing(in, 30) == Step::kBlocked);
  AdvanceRing(sides.ours.fd(), out, 10);
  CHECK(!sides.TheirsWasWoken());
  AdvanceRing(sides.ours.fd(), out, 10);
  CHECK(sides.TheirsWasWoken());
  for (int i = 0; i < 200; ++i) CHECK_EQ(send(sides.ours.fd(), "", 1, 0), 1);
  CHECK(TakeWakes(sides.theirs.fd()));
  CHECK(!sides.TheirsWasWoken());
}

TEST_CASE("WakesAreTakenUpToALimit") {
  const Sides sides;
  const std::vector<char> bytes(2 * kMaxWakes);
  CHECK_EQ(send(sides.ours.fd(), bytes.data(), bytes.size(), 0),
           static_cast<ssize_t>(bytes.size()));
  CHECK(!TakeWakes(sides.theirs.fd()));
  CHECK(sides.TheirsWasWoken());  // the rest is still there
}

TEST_CASE("WhatCannotBeIsAFailure") {
  const Sides sides;
  static_cast<void>(sides.one->outgoing_parts()->Advance(1u << 30));
  RingEnd* const in = sides.other->incoming_parts();
  size_t number = 0;
  const Buffers buffers;
  CHECK(LookIntoRing(in, &number) == Step::kFailed);
  CHECK(AwaitRing(in, 10) == Step::kFailed);
  CHECK(MoveHeaderThroughRing(in, &number, [](char*) {}) == Step::kFailed);
  number = 0;
  CHECK(CopyThroughRing(buffers, {0, 10}, 10, 10, 1, sides.theirs.fd(), in, &number,
                        [](const char*, char*, char*, size_t) {}) == Step::kFailed);
}

TEST_CASE("StreamGoesThroughInRunsOfAnySize") {
  const Sides sides;
  std::string input(200'001, 0), output;
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<char>(i % 251);
  for (size_t at = 0; output.size() < input.size();) {
    const size_t first = std::min<size_t>(24, input.size() - at);
    const iovec out[2] = {{&input[at], first}, {&input[at] + first, input.size() - at - first}};
    size_t sent = 0, received = 0;
    const Step step = StreamThroughRing(out, 2, true, 50'000, sides.ours.fd(),
                                        sides.one->outgoing_parts(), &sent);
    CHECK(step != Step::kFailed);
    CHECK(sent <= Sides::kCapacity / 4);
    at += sent;
    char bytes[2][7000];
    const iovec in[2] = {{bytes[0], 1000}, {bytes[1], sizeof(bytes[1])}};
    CHECK(StreamThroughRing(in, 2, false, 50'000, sides.theirs.fd(), sides.other->incoming_parts(),
                            &received) == Step::kProgress);
    output.append(bytes[0], std::min<size_t>(received, 1000));
    if (received > 1000) output.append(bytes[1], received - 1000);
  }
  CHECK(output == input);
  size_t none = 1;
  const iovec in[1] = {{&output[0], 10}};
  CHECK(StreamThroughRing(in, 1, false, 10, sides.theirs.fd(), sides.other->incoming_parts(),
                          &none) == Step::kBlocked);
  CHECK_EQ(none, 0u);
}

}  // namespace
}  // namespace tf_libra::shm_ring_io_test
