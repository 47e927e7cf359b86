#include "ops/lanes/shared_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/lanes/lane_engine.h"
#include "ops/lanes/testing.h"

namespace tf_libra::shared_memory_test {
namespace {

constexpr size_t kCapacity = 1 << 16;

struct Pair {
  std::unique_ptr<SharedMemory> maker, taker;

  Pair() {
    Socket file;
    CHECK_EQ(SharedMemory::Make(kCapacity, &maker, &file), testing::IsOk());
    CHECK_EQ(SharedMemory::Take(file, kCapacity, &taker), testing::IsOk());
  }
};

size_t There(RingEnd* end) {
  size_t there = SIZE_MAX;
  CHECK(end->Look(&there));
  return there;
}

// Each movement is noticed once, by Look or before it.
TEST_CASE("MovementIsNoticedOnce") {
  Pair pair;
  RingEnd* const out = pair.maker->outgoing_parts();
  RingEnd* const in = pair.taker->incoming_parts();
  CHECK(!in->HasMoved());
  for (const bool looks : {false, true}) {
    static_cast<void>(out->Advance(1));
    if (looks) CHECK(There(in) > 0);
    CHECK_EQ(in->HasMoved(), !looks);
    CHECK(!in->HasMoved());
  }
}

// Random amounts through both rings, by turns: as a queue of bytes would give them.
TEST_CASE("BytesComeAsTheyWent") {
  Pair pair;
  std::mt19937 random(7);
  for (const bool forth : {true, false}) {
    RingEnd* const out = forth ? pair.maker->outgoing_parts() : pair.taker->outgoing_sums();
    RingEnd* const in = forth ? pair.taker->incoming_parts() : pair.maker->incoming_sums();
    CHECK_EQ(There(out), kCapacity);
    std::string expected;
    uint64_t sent = 0;
    for (int turn = 0; turn < 2000; ++turn) {
      CHECK_EQ(There(out), kCapacity - expected.size());
      CHECK_EQ(There(in), expected.size());
      CHECK(std::memcmp(in->here(), expected.data(), expected.size()) == 0);
      const size_t put = random() % (There(out) + 1);
      std::string bytes(put, ' ');
      for (char& byte : bytes) byte = static_cast<char>(sent++ * 31 >> 3);
      std::memcpy(out->here(), bytes.data(), put);
      CHECK(!out->Advance(put));  // no rank waits
      expected += bytes;
      const size_t take = random() % (expected.size() + 1);
      CHECK(!in->Advance(take));
      expected.erase(0, take);
    }
    CHECK(sent > 10 * kCapacity);
  }
}

// Exactly who waits is woken, once what it waits for is there, and once.
TEST_CASE("WokenWhenItIsWorthIt") {
  Pair pair;
  RingEnd* const out = pair.maker->outgoing_sums();
  RingEnd* const in = pair.taker->incoming_sums();
  in->Await(100);
  CHECK(!out->Advance(99));
  CHECK(out->Advance(1));
  CHECK(!out->Advance(1));
  in->Await(200);
  in->AwaitNothing();
  CHECK(!out->Advance(kCapacity - 101));
  CHECK_EQ(There(out), 0u);
  out->Await(1000);
  CHECK(!in->Advance(999));
  CHECK(in->Advance(1));
  CHECK(!in->Advance(1));
}

// What the other process writes where it should not: noticed, and nothing beyond the ring is
// touched.
TEST_CASE("PositionsThatCannotBe") {
  Socket file;
  std::unique_ptr<SharedMemory> memory;
  CHECK_EQ(SharedMemory::Make(kCapacity, &memory, &file), testing::IsOk());
  void* const mapped =
      mmap(nullptr, 4 * sizeof(RingState), PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  CHECK(mapped != MAP_FAILED);
  RingState* const outgoing = static_cast<RingState*>(mapped);
  RingState* const incoming = outgoing + 2;
  CHECK(!memory->outgoing_parts()->Advance(1000));
  size_t there;
  for (const uint64_t odd : {uint64_t{kCapacity + 1}, uint64_t{1} << 63, UINT64_MAX}) {
    incoming->written = odd;
    CHECK(!memory->incoming_parts()->Look(&there));
  }
  for (const uint64_t odd : {uint64_t{1001}, uint64_t{1} << 63, uint64_t{1} << 40}) {
    outgoing->read = odd;
    CHECK(!memory->outgoing_parts()->Look(&there));
  }
  // Its own positions, changed by the other: known better here.
  incoming->written = 10;
  incoming->read = 77;
  CHECK_EQ(There(memory->incoming_parts()), 10u);
  outgoing->read = 1000;
  outgoing->written = UINT64_MAX;
  CHECK_EQ(There(memory->outgoing_parts()), kCapacity);
  munmap(mapped, 4 * sizeof(RingState));
}

// A position of the other side that goes back is one that it never had, or had to keep. Amounts
// wrap around: this one goes back by ten.
TEST_CASE("PositionsThatGoBack") {
  constexpr size_t kBack = 0 - size_t{10};
  Pair pair;
  RingEnd* const out = pair.maker->outgoing_parts();
  RingEnd* const in = pair.taker->incoming_parts();
  size_t there = 0;
  static_cast<void>(out->Advance(100));
  CHECK_EQ(There(in), 100u);
  static_cast<void>(in->Advance(50));
  CHECK_EQ(There(out), kCapacity - 50);
  static_cast<void>(out->Advance(kBack));  // to 90
  CHECK(!in->Look(&there));
  static_cast<void>(in->Advance(kBack));  // to 40
  CHECK(!out->Look(&there));
}

// A file that could shrink would end who has mapped it; one of another size is no agreement.
TEST_CASE("FilesThatAreNotTaken") {
  std::unique_ptr<SharedMemory> memory;
  const auto refused = [&](const Socket& file) {
    CHECK_EQ(SharedMemory::Take(file, kCapacity, &memory),
             testing::StatusIs(StatusCode::kFailedPrecondition, "not as agreed"));
    CHECK(memory == nullptr);
  };
  Socket made;
  {
    std::unique_ptr<SharedMemory> maker;
    CHECK_EQ(SharedMemory::Make(2 * kCapacity, &maker, &made), testing::IsOk());
  }
  refused(made);
  refused(Socket(open("/dev/zero", O_RDWR | O_CLOEXEC)));
  refused(Socket(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)));
  for (const size_t size : {size_t{0}, kCapacity, size_t{1} << 20}) {
    Socket unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    CHECK_EQ(ftruncate(unsealed.fd(), static_cast<off_t>(size)), 0);
    refused(unsealed);
  }
  Socket own;
  std::unique_ptr<SharedMemory> maker;
  CHECK_EQ(SharedMemory::Make(kCapacity, &maker, &own), testing::IsOk());
  CHECK_EQ(ftruncate(own.fd(), 0), -1);
  CHECK_EQ(ftruncate(own.fd(), 1 << 30), -1);
}

// The body, in a process of its own.
void InAChild(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const int before = testing::Failures();
    body();
    _exit(testing::Failures() == before ? 0 : 1);
  }
  int outcome = -1;
  CHECK_EQ(waitpid(child, &outcome, 0), child);
  CHECK_EQ(outcome, 0);
}

void LimitTo(int resource, rlim_t bytes) {
  const rlimit limit{bytes, bytes};
  CHECK_EQ(setrlimit(static_cast<__rlimit_resource>(resource), &limit), 0);
}

// Rejected by the system: an error, not a signal.
TEST_CASE("MemoryThatIsNotToBeHad") {
  InAChild([] {
    signal(SIGXFSZ, SIG_IGN);
    LimitTo(RLIMIT_FSIZE, kCapacity);
    std::unique_ptr<SharedMemory> memory;
    Socket file;
    CHECK_EQ(SharedMemory::Make(kCapacity, &memory, &file),
             testing::StatusIs(StatusCode::kUnavailable, "ftruncate: "));
    CHECK((memory == nullptr && !file.valid()));
  });
  InAChild([] {
    std::unique_ptr<SharedMemory> memory;
    Socket file;
    LimitTo(RLIMIT_NOFILE, 3);
    CHECK_EQ(SharedMemory::Make(kCapacity, &memory, &file),
             testing::StatusIs(StatusCode::kUnavailable, "memfd_create: "));
  });
}

// Ranks that are let, and one that is not: who may share memory does, and all of them reduce.
TEST_CASE("RankThatMayNotShare") {
  testing::SetRendezvousHost(kUnixHost, true);
  for (int without = 0; without < 3; ++without) {
    testing::Meeting meeting(3, 2);
    std::vector<Mesh> meshes(3);
    testing::OnEveryRank(3, [&](int rank) {
      testing::Meeting mine = testing::Meeting(1, 2);
      mine.options = meeting.options;
      mine.listeners.resize(3);
      mine.listeners[rank] = std::move(meeting.listeners[rank]);
      mine.options.share_memory = rank != without;
      CHECK_EQ(mine.Connect(rank, &meshes[rank]), testing::IsOk());
    });
    for (const Mesh& mesh : meshes) {
      CHECK_EQ(mesh.unshared, testing::IsOk());
      for (const auto& lane : mesh.lanes) {
        for (int peer = 0; peer < 3; ++peer) {
          const bool both = mesh.rank != without && peer != without && peer != mesh.rank;
          CHECK_EQ(lane.column[peer].memory != nullptr, both);
        }
      }
    }
    testing::OnEveryRank(3, [&](int rank) {
      std::vector<float> values(100001, static_cast<float>(rank + 1));
      const Buffers buffers({{values.data(), values.data(), values.size() * sizeof(float)}});
      ExchangeOptions options;
      options.rank = rank;
      options.peers = &meshes[rank].lanes[1].column;
      options.header.element_type = static_cast<uint8_t>(ElementType::kFloat32);
      options.header.num_bytes = buffers.num_bytes();
      options.buffers = &buffers;
      options.slice = {0, buffers.num_bytes()};
      options.timeout_seconds = testing::kGenerousSeconds;
      std::vector<char> scratch;
      CHECK_EQ(testing::RunWatched(options, &scratch).status, testing::IsOk());
      for (const float value : values) CHECK_EQ(value, 6.0f);
    });
  }
}

// A system that has no more memory of this kind: sockets instead, and the mesh says why.
TEST_CASE("SystemThatRefuses") {
  InAChild([] {
    testing::SetRendezvousHost(kUnixHost, true);
    signal(SIGXFSZ, SIG_IGN);
    LimitTo(RLIMIT_FSIZE, kCapacity);
    std::vector<Mesh> meshes = testing::ConnectAll(2, 3);
    CHECK_EQ(meshes[1].unshared, testing::StatusIs(StatusCode::kUnavailable, "ftruncate: "));
    for (const Mesh& mesh : meshes) {
      for (const auto& lane : mesh.lanes) {
        CHECK((lane.column[1 - mesh.rank].valid() && lane.column[1 - mesh.rank].memory == nullptr));
      }
    }
    std::vector<std::string> warnings;
    LaneEngineOptions options;
    options.warn = [&](const std::string& text) { warnings.push_back(text); };
    std::shared_ptr<LaneEngine> engine;
    CHECK_EQ(LaneEngine::Start(options, std::move(meshes[1]), &engine), testing::IsOk());
    CHECK_EQ(warnings.size(), 1u);
    CHECK_EQ(warnings[0],
             testing::Contains("rank 1 cannot share memory with ranks of its host (ftruncate: "));
  });
}

// Nothing has a name, and no descriptor is kept.
TEST_CASE("NothingIsLeftOpen") {
  testing::SetRendezvousHost(kUnixHost, true);
  const auto num_open = [] {
    int count = 0;
    for (int fd = 0; fd < 1000; ++fd) count += fcntl(fd, F_GETFD) >= 0;
    return count;
  };
  const int before = num_open();
  {
    const Pair pair;
    CHECK_EQ(num_open(), before);
  }
  testing::SharingMemory() = true;
  testing::RendezvousHost() = kUnixHost;
  const std::vector<Mesh> meshes = testing::ConnectAll(2, 3);
  CHECK_EQ(num_open(), before + 2 * (2 + 3));
}

}  // namespace
}  // namespace tf_libra::shared_memory_test
