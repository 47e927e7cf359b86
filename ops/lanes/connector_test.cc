// Rank 1 calls rank 0, which the test plays.
#include "ops/lanes/connector.h"

#include <poll.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "ops/lanes/handshake.h"
#include "ops/lanes/testing.h"

namespace tf_libra::connector_test {
namespace {

using testing::kGenerousSeconds;

TimePoint Later() { return After(kGenerousSeconds); }

// The ranks have met before, so that there is one connection between them: lane 4.
struct Caller {
  static constexpr int kLane = 4;
  testing::Meeting meeting{2, kLane + 1};
  MeshOptions options = meeting.options;
  Mesh mesh;

  Caller() {
    options.rank = mesh.rank = 1;
    options.first_lane = kLane;
    options.share_memory = false;
    mesh.world_size = 2;
    mesh.grid = Grid(1, 2, {});
    mesh.lanes.resize(1);
    mesh.lanes[0].column.resize(2);
  }

  Status Call(double seconds = kGenerousSeconds) {
    MeshConnector connecting(options, After(seconds), &mesh);
    connecting.Start();
    const Status status = connecting.Wait();
    CHECK(connecting.is_over());
    CHECK_EQ(connecting.has_failed(), !status.ok());
    CHECK_EQ(mesh.lanes[0].column[0].valid(), status.ok());
    return status;
  }

  // The callee's end of the next call.
  Socket Taken() {
    pollfd entry{meeting.listeners[0].fd(), POLLIN, 0};
    CHECK_EQ(poll(&entry, 1, static_cast<int>(kGenerousSeconds * 1e3)), 1);
    Socket socket;
    CHECK_EQ(Accept(meeting.listeners[0], &socket), testing::IsOk());
    return socket;
  }

  Hello Heard(const Socket& socket) {
    Hello hello;
    CHECK_EQ(ReceiveAll(socket, &hello, sizeof(hello), Later()), testing::IsOk());
    return hello;
  }

  // As a rank of the job would.
  Answer Right(const Hello& hello) {
    Answer answer;
    std::memcpy(answer.magic, kMagic, sizeof(kMagic));
    answer.nonce = DrawNonce();
    answer.proof = Proof(options.secret, Role::kCallee, hello, 0, answer.nonce);
    return answer;
  }

  void Say(const Socket& socket, const void* data, size_t size) {
    CHECK_EQ(SendAll(socket, data, size, Later()), testing::IsOk());
  }

  void Welcome(const Socket& socket) {
    const Hello hello = Heard(socket);
    CHECK(std::memcmp(hello.magic, kMagic, sizeof(kMagic)) == 0);
    CHECK_EQ(hello.rank, 1);
    CHECK_EQ(hello.lane, kLane);
    CHECK_EQ(hello.world_size, 2);
    CHECK_EQ(hello.num_lanes, kLane + 1);
    const Answer answer = Right(hello);
    Say(socket, &answer, sizeof(answer));
    Digest proof;
    CHECK_EQ(ReceiveAll(socket, proof.data(), proof.size(), Later()), testing::IsOk());
    CHECK(SameDigest(proof, Proof(options.secret, Role::kCaller, hello, 0, answer.nonce)));
    Say(socket, &kWelcome, sizeof(kWelcome));
  }
};

// Calls while `callee` answers in a thread.
Status CallTo(Caller* caller, const std::function<void()>& callee,
              double seconds = kGenerousSeconds) {
  std::thread thread(callee);
  const Status status = caller->Call(seconds);
  thread.join();
  return status;
}

TEST_CASE("WhoIsWelcomeIsConnected") {
  testing::OverBoth();
  Caller caller;
  CHECK_EQ(CallTo(&caller, [&] { caller.Welcome(caller.Taken()); }), testing::IsOk());
}

// As a network that loses packets, and a callee that is restarted: it is called again.
TEST_CASE("WhoHangsUpIsCalledAgain") {
  testing::OverBoth();
  Caller caller;
  const auto callee = [&] {
    caller.Taken();
    {
      const Socket socket = caller.Taken();
      caller.Heard(socket);
    }
    {
      const Socket socket = caller.Taken();
      const Answer answer = caller.Right(caller.Heard(socket));
      caller.Say(socket, &answer, sizeof(answer) - 1);  // but for the last byte
    }
    caller.Welcome(caller.Taken());
  };
  CHECK_EQ(CallTo(&caller, callee), testing::IsOk());
}

// A process that is no rank of this job: certain immediately, and the caller's proof is not shown.
TEST_CASE("ImpostorsAreNotCalledAgain") {
  testing::OverBoth();
  struct Case {
    void (*change)(Answer*);
    const char* why;
  };
  const Case cases[] = {
      {[](Answer* answer) { answer->magic[7] ^= 1; }, "rank 0's port is held by another program"},
      {[](Answer* answer) { answer->nonce[31] ^= 1; }, "perhaps of another job"},
      {[](Answer* answer) { answer->proof[0] ^= 1; }, "perhaps of another job"},
      {[](Answer* answer) { answer->proof[31] ^= 0x80; }, "perhaps of another job"},
  };
  for (const Case& one : cases) {
    Caller caller;
    const auto callee = [&] {
      const Socket socket = caller.Taken();
      Answer answer = caller.Right(caller.Heard(socket));
      one.change(&answer);
      caller.Say(socket, &answer, sizeof(answer));
      char byte;
      CHECK_EQ(ReceiveAll(socket, &byte, 1, Later()),
               testing::StatusIs(StatusCode::kUnavailable, ""));
    };
    CHECK_EQ(CallTo(&caller, callee), testing::StatusIs(StatusCode::kFailedPrecondition, one.why));
  }
}

// A proof of the caller's own role is none of the callee's.
TEST_CASE("AnEchoIsAnImpostor") {
  Caller caller;
  const auto callee = [&] {
    const Socket socket = caller.Taken();
    const Hello hello = caller.Heard(socket);
    Answer answer = caller.Right(hello);
    answer.proof = Proof(caller.options.secret, Role::kCaller, hello, 0, answer.nonce);
    caller.Say(socket, &answer, sizeof(answer));
  };
  CHECK_EQ(CallTo(&caller, callee),
           testing::StatusIs(StatusCode::kFailedPrecondition, "perhaps of another job"));
}

TEST_CASE("WhoDoesNotAnswerIsNamed") {
  testing::OverBoth();
  Caller caller;
  CHECK_EQ(caller.Call(testing::kShortSeconds),
           testing::StatusIs(StatusCode::kDeadlineExceeded, "rank 1 cannot reach rank 0 within"));
}

TEST_CASE("WhereNobodyListensNobodyIs") {
  testing::OverBoth();
  Caller caller;
  caller.meeting.listeners[0] = Socket();
  CHECK_EQ(caller.Call(), testing::StatusIs(StatusCode::kUnavailable, "nobody listens for rank 0"));
}

TEST_CASE("WhoIsInterruptedSaysWhy") {
  Caller caller;
  caller.options.interrupted = [] {
    return Status(StatusCode::kUnavailable, "another rank has given up");
  };
  CHECK_EQ(caller.Call(), testing::StatusIs(StatusCode::kUnavailable, "another rank has given up"));
}

// Also one that has begun to answer is not waited for: neither the caller nor its end.
TEST_CASE("CalleeThatFallsSilentHalfway") {
  testing::OverBoth();
  for (const size_t answered : {size_t{3}, sizeof(kMagic), sizeof(Answer)}) {
    Caller caller;
    std::atomic<bool> is_over{false};
    caller.options.interrupted = [&] {
      return is_over ? Status(StatusCode::kUnavailable, "another rank has given up") : Status();
    };
    const auto callee = [&] {
      const Socket socket = caller.Taken();
      const Answer answer = caller.Right(caller.Heard(socket));
      caller.Say(socket, &answer, answered);
      is_over = true;
      char byte;  // until it hangs up
      while (ReceiveAll(socket, &byte, 1, Later()).ok()) {
      }
    };
    CHECK_EQ(CallTo(&caller, callee, 1e4),
             testing::StatusIs(StatusCode::kUnavailable, "another rank has given up"));
  }
}

TEST_CASE("TheLowestRankCallsNobody") {
  Caller caller;
  caller.options.rank = 0;
  MeshConnector connecting(caller.options, Later(), &caller.mesh);
  CHECK(connecting.is_over());
  connecting.Start();
  CHECK_EQ(connecting.Wait(), testing::IsOk());
}

}  // namespace
}  // namespace tf_libra::connector_test
