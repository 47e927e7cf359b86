// System calls that move less than requested, and such that fail, at every place where lanes,
// messages and control make them: what two ranks exchange comes whole, or both end with an error
// text.
#include <dlfcn.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/lane_engine.h"
#include "ops/lanes/testing.h"

namespace {

std::atomic<bool> moves_less{false};
// Calls to come until one fails; negative: none does.
std::atomic<int> calls_left{-1};
std::atomic<bool> has_failed{false};
// Made by lanes: those that send, and that receive.
std::atomic<int> num_sends{0}, num_receives{0};
std::atomic<size_t> num_shortened{0};

// What every poll and epoll_wait ends with; 0: with what happens.
std::atomic<int> wait_error{0};

bool WaitFails() {
  if (wait_error == 0) return false;
  errno = wait_error;
  return true;
}

bool Fails() {
  if (calls_left < 0 || calls_left.fetch_sub(1) != 0) return false;
  has_failed = true;
  errno = ECONNRESET;
  return true;
}

size_t Less(size_t size) {
  thread_local std::minstd_rand random(static_cast<unsigned>(++num_shortened));
  if (!moves_less || size < 2) return size;
  ++num_shortened;
  return 1 + random() % size;
}

// The same runs, cut off somewhere.
struct Cut {
  std::vector<iovec> runs;
  msghdr message;

  explicit Cut(const msghdr& whole) : message(whole) {
    size_t size = 0;
    for (size_t i = 0; i < whole.msg_iovlen; ++i) size += whole.msg_iov[i].iov_len;
    size_t left = whole.msg_controllen > 0 ? size : Less(size);  // not what comes with a file
    for (size_t i = 0; i < whole.msg_iovlen && left > 0; ++i) {
      runs.push_back({whole.msg_iov[i].iov_base, std::min(left, whole.msg_iov[i].iov_len)});
      left -= runs.back().iov_len;
    }
    message.msg_iov = runs.data();
    message.msg_iovlen = runs.size();
  }
};

template <typename Call>
Call* Real(const char* name) {
  return reinterpret_cast<Call*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

ssize_t send(int fd, const void* data, size_t size, int flags) {
  static auto* const real = Real<decltype(send)>("send");
  return Fails() ? -1 : real(fd, data, Less(size), flags);
}

ssize_t recv(int fd, void* data, size_t size, int flags) {
  static auto* const real = Real<decltype(recv)>("recv");
  return Fails() ? -1 : real(fd, data, Less(size), flags);
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static auto* const real = Real<decltype(sendmsg)>("sendmsg");
  if (Fails()) return -1;
  ++num_sends;
  const Cut cut(*message);
  return real(fd, &cut.message, flags);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static auto* const real = Real<decltype(recvmsg)>("recvmsg");
  if (Fails()) return -1;
  ++num_receives;
  Cut cut(*message);
  const ssize_t received = real(fd, &cut.message, flags);
  message->msg_controllen = cut.message.msg_controllen;
  message->msg_flags = cut.message.msg_flags;
  return received;
}

int poll(pollfd* entries, nfds_t count, int milliseconds) {
  static auto* const real = Real<decltype(poll)>("poll");
  return WaitFails() ? -1 : real(entries, count, milliseconds);
}

int epoll_wait(int set, epoll_event* events, int count, int milliseconds) {
  static auto* const real = Real<decltype(epoll_wait)>("epoll_wait");
  return WaitFails() ? -1 : real(set, events, count, milliseconds);
}

namespace tf_libra {
namespace {

using testing::ConnectAll;
using testing::kGenerousSeconds;
using testing::OnEveryRank;

using Engines = std::vector<std::shared_ptr<LaneEngine>>;

constexpr int kWorld = 2;

Engines MakeEngines() {
  std::vector<Mesh> meshes = ConnectAll(kWorld, 2);
  Engines engines(kWorld);
  LaneEngineOptions options;
  options.timeout_seconds = kGenerousSeconds;
  for (int rank = 0; rank < kWorld; ++rank) {
    CHECK_EQ(LaneEngine::Start(options, std::move(meshes[rank]), &engines[rank]), testing::IsOk());
  }
  return engines;
}

// What one rank has under way, and how it ends.
struct UnderWay {
  int rank = 0;
  LaneEngine* engine = nullptr;
  std::deque<std::vector<float>> memory;
  std::deque<std::promise<Status>> ends;

  // As many values as on the other rank, all alike.
  std::vector<float>* Values(size_t count, float value) {
    memory.emplace_back(count, value);
    return &memory.back();
  }

  std::function<void(const Status&)> End() {
    ends.emplace_back();
    return [end = &ends.back()](const Status& status) { end->set_value(status); };
  }

  // In a stream of its own.
  void AllReduce(int lane, std::vector<float>* values) {
    auto info = std::make_shared<OperationInfo>();
    info->group = lane;
    info->first_lane = lane;
    info->num_threads = 1;
    info->reduction = Reduction::kSum;
    info->tensor_names = {"values"};
    info->ComputeDigest();
    AllReduceRequest request;
    request.operation = info;
    request.tensors = {{values->data(), values->data(), 4 * values->size()}};
    request.done = End();
    engine->AllReduce(std::move(request));
  }

  void Message(bool sends, std::vector<float>* values) {
    MessageRequest request;
    request.peer = 1 - rank;
    request.name = sends == (rank == 0) ? "there" : "back";
    request.content = "floats";
    request.data = reinterpret_cast<char*>(values->data());
    request.num_bytes = 4 * values->size();
    request.done = End();
    if (sends) return engine->Send(std::move(request));
    engine->Receive(std::move(request));
  }

  void Gather(std::vector<float>* mine, std::vector<float>* all) {
    CollectiveRequest request;
    request.kind = CollectiveKind::kAllGather;
    request.ranks = {1, 0};
    request.name = "gathered";
    request.content = "floats";
    request.input = reinterpret_cast<const char*>(mine->data());
    request.output = reinterpret_cast<char*>(all->data());
    request.num_bytes = 4 * mine->size();
    request.done = End();
    engine->Run(std::move(request));
  }
};

// Everything that an engine does for a step, concurrently; returns the first error, or checks what
// came.
Status Exchange(int rank, LaneEngine* engine, size_t count) {
  std::vector<std::string> said;
  const std::string mine(1000 + rank, 'x');
  Status first = engine->AllGather(mine, &said);
  UnderWay way;
  way.rank = rank;
  way.engine = engine;
  const float own = static_cast<float>(rank + 1), other = static_cast<float>(2 - rank);
  std::vector<float>* const one = way.Values(count, own);
  std::vector<float>* const two = way.Values(count / 3, 10 * own);
  std::vector<float>* const sent = way.Values(count, own);
  std::vector<float>* const received = way.Values(count, 0);
  std::vector<float>* const gathered = way.Values(2 * count, 0);
  way.AllReduce(0, one);
  way.AllReduce(1, two);
  way.Message(true, sent);
  way.Message(false, received);
  way.Gather(sent, gathered);
  for (std::promise<Status>& end : way.ends) {
    const Status status = end.get_future().get();
    if (first.ok()) first = status;
  }
  std::string text = mine;
  const Status last = engine->Broadcast(0, &text);
  if (first.ok()) first = last;
  if (!first.ok()) return first;
  const auto is_all = [](const std::vector<float>& values, float value) {
    return std::all_of(values.begin(), values.end(),
                       [&](float element) { return element == value; });
  };
  CHECK_EQ(said[1 - rank].size(), static_cast<size_t>(1001 - rank));
  CHECK_EQ(text.size(), 1000u);
  CHECK((is_all(*one, 3) && is_all(*two, 30) && is_all(*received, other)));
  CHECK(is_all({gathered->begin(), gathered->begin() + count}, 2));
  CHECK(is_all({gathered->begin() + count, gathered->end()}, 1));
  return first;
}

TEST_CASE("MoveLessThanTheyAreAsked") {
  testing::OverAll();
  const Engines engines = MakeEngines();
  const size_t before = num_shortened;
  moves_less = true;
  OnEveryRank(kWorld, [&](int rank) {
    for (const size_t count : {3, 1000, 100'000}) {
      for (int round = 0; round < 5; ++round) {
        CHECK_EQ(Exchange(rank, engines[rank].get(), count), testing::IsOk());
      }
    }
  });
  moves_less = false;
  CHECK(num_shortened > before + 500);  // else the hooks have no effect; memory needs few calls
}

// A rank sends a header with its part, and a sum. It looks for what the peer sends when it has sent
// its own, and after each event of the socket: bytes that came, twice, and bytes that the peer
// took.
TEST_CASE("SmallAllReduceTakesFewCalls") {
  testing::OverBoth();
  constexpr int kRounds = 50;
  const Engines engines = MakeEngines();
  for (const bool is_first : {true, false}) {
    if (!is_first) num_sends = num_receives = 0;
    OnEveryRank(kWorld, [&](int rank) {
      for (int round = 0; round < (is_first ? 1 : kRounds); ++round) {
        UnderWay way;
        way.rank = rank;
        way.engine = engines[rank].get();
        std::vector<float>* const values = way.Values(1000, 1);
        way.AllReduce(0, values);
        CHECK_EQ(way.ends[0].get_future().get(), testing::IsOk());
        CHECK_EQ((*values)[999], 2);
      }
    });
  }
  CHECK_EQ(num_sends.load(), 2 * kWorld * kRounds);
  CHECK(num_receives >= 2 * kWorld * kRounds);
  CHECK(num_receives <= 6 * kWorld * kRounds);
}

// A wait that cannot be made is an error; one that signals end without end has its deadline: of
// sockets, of ranks that meet, either of which is missing, of lanes, messages and control messages.
TEST_CASE("WaitsThatKeepFailing") {
  testing::OverBoth();
  for (const int error : {EINTR, ENOMEM, EINVAL}) {
    const bool is_late = error == EINTR;
    const double seconds = is_late ? testing::kShortSeconds : kGenerousSeconds;
    const auto check = [&](const Status& status) {
      const StatusCode code =
          is_late ? StatusCode::kDeadlineExceeded : StatusCode::kResourceExhausted;
      CHECK_EQ(status, testing::StatusIs(code, is_late ? "" : "poll"));
    };
    std::vector<Mesh> meshes = ConnectAll(kWorld, 1);
    const Socket unused = std::move(meshes[0].control[1]);
    for (int lost = 0; lost < kWorld; ++lost) {
      testing::Meeting meeting(kWorld, 1, seconds);
      Mesh mesh;
      wait_error = error;
      check(meeting.Connect(1 - lost, &mesh));
      wait_error = 0;
    }
    char byte;
    wait_error = error;
    const Status received = ReceiveAll(unused, &byte, 1, After(seconds));
    wait_error = 0;
    CHECK(!received.ok());
    if (is_late) check(received);

    LaneEngineOptions options;
    options.timeout_seconds = seconds;
    for (const bool by_message : {false, true}) {
      std::vector<Mesh> of_engine = ConnectAll(kWorld, 1);
      of_engine[0].tree = Tree(0, 1, {});  // which has a wait of its own
      std::shared_ptr<LaneEngine> engine;
      CHECK_EQ(LaneEngine::Start(options, std::move(of_engine[0]), &engine), testing::IsOk());
      UnderWay way;
      way.engine = engine.get();
      wait_error = error;
      if (by_message) {
        way.Message(false, way.Values(10, 0));
      } else {
        way.AllReduce(0, way.Values(10, 0));
      }
      const Status status = way.ends[0].get_future().get();
      wait_error = 0;
      check(status);
      engine.reset();
    }

    std::vector<Mesh> of_control = ConnectAll(kWorld, 1);
    std::shared_ptr<LaneEngine> engine;
    CHECK_EQ(LaneEngine::Start(options, std::move(of_control[0]), &engine), testing::IsOk());
    std::vector<std::string> all;
    wait_error = error;
    const Status gathered = engine->AllGather("", &all);
    wait_error = 0;
    check(gathered);
  }
}

// Exit codes of a process in which one call was to fail.
enum Outcome { kNothingFailed = 0, kEndedWell = 1, kWrong = 2 };

Outcome FailAfter(int num_calls) {
  Engines engines = MakeEngines();
  calls_left = num_calls;
  OnEveryRank(kWorld, [&](int rank) {
    const Status status = Exchange(rank, engines[rank].get(), 20'000);
    // No rank is left waiting for this one: the other rank receives the error.
    if (!status.ok()) {
      CHECK_EQ(status,
               testing::StatusIs(StatusCode::kUnavailable, "rank " + std::to_string(1 - rank)));
    }
  });
  const bool failed = has_failed;
  calls_left = -1;
  engines.clear();
  if (testing::Failures() > 0) return kWrong;
  return failed ? kEndedWell : kNothingFailed;
}

// The first call, then the second, and so on, whichever rank makes it. Each case runs in a process
// of its own, since most of its time is waiting for the other side.
// Memory has no calls that move anything: one that wakes a peer fails only if that is gone.
TEST_CASE("FailAnywhere") {
  testing::OverBoth();
  constexpr int kAtOnce = 8;
  int num_calls = 0;
  for (bool failed = true; failed;) {
    std::vector<pid_t> children;
    for (int i = 0; i < kAtOnce; ++i, num_calls += 1 + num_calls / 16) {
      children.push_back(fork());
      if (children.back() == 0) {
        alarm(120);
        _exit(FailAfter(num_calls));
      }
    }
    for (const pid_t child : children) {
      int outcome = -1;
      CHECK_EQ(waitpid(child, &outcome, 0), child);
      CHECK((WIFEXITED(outcome) && WEXITSTATUS(outcome) != kWrong));
      failed = WIFEXITED(outcome) && WEXITSTATUS(outcome) == kEndedWell;
    }
  }
  CHECK(num_calls > 50);  // else the hooks are none
}

}  // namespace
}  // namespace tf_libra
