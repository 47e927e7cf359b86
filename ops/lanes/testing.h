// What the tests of the lanes share: checks that count, and ranks that are threads of one process.
#ifndef TF_LIBRA_OPS_LANES_TESTING_H_
#define TF_LIBRA_OPS_LANES_TESTING_H_

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/exchange.h"
#include "ops/lanes/mesh.h"
#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"

// Each prints where it stands and what it saw; the program goes on and exits with 1.
#define CHECK_TRUE(condition) \
  tf_libra::testing::Check((condition), __FILE__, __LINE__, #condition, "true", "false")
#define CHECK_EQ(left, right) \
  tf_libra::testing::CheckEqual((left), (right), __FILE__, __LINE__, #left " == " #right)
#define CHECK_CONTAINS(text, part) \
  tf_libra::testing::CheckContains((text), (part), __FILE__, __LINE__)
#define CHECK_OK(status) \
  tf_libra::testing::CheckStatus((status), tf_libra::StatusCode::kOk, "", __FILE__, __LINE__)
#define CHECK_STATUS(status, code, part) \
  tf_libra::testing::CheckStatus((status), (code), (part), __FILE__, __LINE__)

namespace tf_libra {
namespace testing {

// Where success is expected, no machine is slow enough for this.
constexpr double kGenerousSeconds = 60;
// Where a deadline is to pass.
constexpr double kShortSeconds = 0.4;

inline std::atomic<int>& Failures() {
  static std::atomic<int> failures{0};
  return failures;
}

template <typename Left, typename Right>
void Check(bool passed, const char* file, int line, const char* what, const Left& left,
           const Right& right) {
  if (passed) return;
  if (++Failures() > 50) return;  // the first ones tell the story
  std::ostringstream text;
  text << file << ":" << line << ": failed: " << what << "\n  left:  " << left
       << "\n  right: " << right << "\n";
  std::cerr << text.str() << std::flush;
}

template <typename Left, typename Right>
void CheckEqual(const Left& left, const Right& right, const char* file, int line,
                const char* what) {
  Check(left == right, file, line, what, left, right);
}

inline void CheckContains(const std::string& text, const std::string& part, const char* file,
                          int line) {
  Check(text.find(part) != std::string::npos, file, line, "text contains part", text, part);
}

inline void CheckStatus(const Status& status, StatusCode code, const std::string& part,
                        const char* file, int line) {
  Check(status.code() == code, file, line, ("status: " + status.message()).c_str(),
        static_cast<int>(status.code()), static_cast<int>(code));
  CheckContains(status.message(), part, file, line);
}

// Where the ranks of the running test meet: loopback, or a Unix socket.
inline std::string& MeetingPlace() {
  static std::string place = "127.0.0.1";
  return place;
}

// Whether they then share memory, if they can.
inline bool& SharingMemory() {
  static bool sharing = false;
  return sharing;
}

struct Test {
  const char* name;
  void (*run)();
};

// Runs `tests`, or those that the command line names. A test that hangs ends the program.
inline int RunTests(const std::vector<Test>& tests, int argc, char** argv) {
  alarm(800);
  for (const Test& test : tests) {
    bool chosen = argc < 2;
    for (int i = 1; i < argc; ++i) chosen = chosen || std::string(argv[i]) == test.name;
    if (!chosen) continue;
    const int before = Failures();
    const TimePoint start = Clock::now();
    test.run();
    std::cout << (Failures() == before ? "ok     " : "FAILED ") << test.name << " ("
              << -SecondsUntil(start) << " s)" << std::endl;
  }
  return Failures() == 0 ? 0 : 1;
}

// Calls `body(rank)` in a thread per rank and waits for all.
inline void OnEveryRank(int world_size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

struct Way {
  const char* place;
  bool sharing_memory;
};

inline int RunTestsOver(const std::vector<Way>& ways, const std::vector<Test>& tests, int argc,
                        char** argv) {
  for (const Way& way : ways) {
    MeetingPlace() = way.place;
    SharingMemory() = way.sharing_memory;
    std::cout << "over " << way.place << (way.sharing_memory ? " in memory" : "") << std::endl;
    RunTests(tests, argc, argv);
  }
  return Failures() == 0 ? 0 : 1;
}

// As RunTests, first over TCP, then over Unix sockets.
inline int RunTestsOverBoth(const std::vector<Test>& tests, int argc, char** argv) {
  return RunTestsOver({{"127.0.0.1", false}, {kUnixHost, false}}, tests, argc, argv);
}

// And then through shared memory: what lanes carry.
inline int RunTestsOverAll(const std::vector<Test>& tests, int argc, char** argv) {
  return RunTestsOver({{"127.0.0.1", false}, {kUnixHost, false}, {kUnixHost, true}}, tests, argc,
                      argv);
}

// What `world_size` ranks need to meet at the MeetingPlace.
struct Meeting {
  std::vector<Socket> listeners;
  MeshOptions options;  // all but the rank

  Meeting(int world_size, int num_lanes, double timeout_seconds = kGenerousSeconds)
      : listeners(world_size) {
    options.addresses.resize(world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      CHECK_OK(Listen(MeetingPlace(), 0, &listeners[rank], &options.addresses[rank]));
    }
    options.secret.fill(0xce);
    options.num_lanes = num_lanes;
    options.share_memory = SharingMemory();
    options.timeout_seconds = timeout_seconds;
  }

  Status Connect(int rank, Mesh* mesh) {
    MeshOptions mine = options;
    mine.rank = rank;
    return ConnectMesh(mine, std::move(listeners[rank]), mesh);
  }
};

// The ends of all ranks' connections, [rank].
inline std::vector<Mesh> ConnectAll(int world_size, int num_lanes) {
  Meeting meeting(world_size, num_lanes);
  std::vector<Mesh> meshes(world_size);
  OnEveryRank(world_size, [&](int rank) { CHECK_OK(meeting.Connect(rank, &meshes[rank])); });
  return meshes;
}

// Whole buffers over a lane's connection, as a rank would move them that a test plays.
inline Status Move(const Connection& connection, RingEnd* end, bool sending, void* data,
                   size_t size) {
  const TimePoint deadline = After(kGenerousSeconds);
  if (end == nullptr) {
    return sending ? SendAll(connection.socket, data, size, deadline)
                   : ReceiveAll(connection.socket, data, size, deadline);
  }
  const int fd = connection.socket.fd();
  char* next = static_cast<char*>(data);
  bool closed = false;
  while (size > 0) {
    size_t there = 0;
    CHECK_TRUE(end->Look(&there));
    if (const size_t count = std::min(there, size); count > 0) {
      std::memcpy(sending ? end->here() : next, sending ? next : end->here(), count);
      if (end->Advance(count)) send(fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
      next += count;
      size -= count;
      continue;
    }
    if (closed) return Status(StatusCode::kUnavailable, "closed");
    end->Await(1);
    CHECK_TRUE(end->Look(&there));
    if (there > 0) continue;
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, PollMilliseconds(deadline)) == 0) {
      return Status(StatusCode::kDeadlineExceeded, "silent");
    }
    char bytes[64];
    closed = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) == 0;
  }
  return Status();
}

// Headers and parts.
inline Status Send(const Connection& connection, const void* data, size_t size) {
  RingEnd* const end = connection.memory ? connection.memory->outgoing_parts() : nullptr;
  return Move(connection, end, true, const_cast<void*>(data), size);
}

inline Status Receive(const Connection& connection, void* data, size_t size) {
  RingEnd* const end = connection.memory ? connection.memory->incoming_parts() : nullptr;
  return Move(connection, end, false, data, size);
}

inline Status SendSum(const Connection& connection, const void* data, size_t size) {
  RingEnd* const end = connection.memory ? connection.memory->outgoing_sums() : nullptr;
  return Move(connection, end, true, const_cast<void*>(data), size);
}

inline Status ReceiveSum(const Connection& connection, void* data, size_t size) {
  RingEnd* const end = connection.memory ? connection.memory->incoming_sums() : nullptr;
  return Move(connection, end, false, data, size);
}

// One exchange, and nothing of it is watched before or after.
inline ExchangeResult RunWatched(ExchangeOptions options, std::vector<char>* scratch) {
  std::unique_ptr<Watch> watch;
  ExchangeResult result;
  result.status = Watch::Make(*options.peers, options.names, options.links, &watch);
  if (!result.status.ok()) return result;
  options.watch = watch.get();
  return RunExchange(options, scratch);
}

// A header, as it stands on the wire or in the ring.
inline std::string HeaderBytes(const Connection& connection, const ExchangeHeader& header) {
  std::string bytes;
  if (connection.memory != nullptr) {
    bytes.resize(BytesToHeaderEnd(connection.memory->outgoing_parts()->position()));
    std::memcpy(&bytes[bytes.size() - kHeaderRoom], &header, sizeof(header));
  } else {
    bytes.assign(reinterpret_cast<const char*>(&header), sizeof(header));
  }
  return bytes;
}

inline Status ReceiveHeader(const Connection& connection, ExchangeHeader* header) {
  if (connection.memory == nullptr) return Receive(connection, header, sizeof(*header));
  std::string bytes(BytesToHeaderEnd(connection.memory->incoming_parts()->position()), ' ');
  const Status status = Receive(connection, &bytes[0], bytes.size());
  std::memcpy(header, &bytes[bytes.size() - kHeaderRoom], sizeof(*header));
  return status;
}

}  // namespace testing
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_TESTING_H_
