// What of the engine is not between all ranks; how messages move is tested in messenger_test.cc.
#include <algorithm>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/lanes/engine_testing.h"
#include "ops/lanes/lane_engine.h"

namespace tf_libra::lane_engine_messages_test {
namespace {

using testing::ConnectAll;
using testing::Engines;
using testing::MakeEngines;

// A request, its memory, and its end.
struct Message {
  std::string bytes;
  std::promise<Status> end;

  MessageRequest Request(int peer, const std::string& name) {
    MessageRequest request;
    request.peer = peer;
    request.name = name;
    request.content = "uint8 [" + std::to_string(bytes.size()) + "]";
    request.data = bytes.data();
    request.num_bytes = bytes.size();
    request.done = [this](const Status& status) { end.set_value(status); };
    return request;
  }
  Status Wait() { return end.get_future().get(); }
};

CollectiveRequest AllGatherOf(std::vector<int> ranks, const char* input, char* output,
                              std::promise<Status>* end) {
  CollectiveRequest request;
  request.kind = CollectiveKind::kAllGather;
  request.ranks = std::move(ranks);
  request.name = "gathered";
  request.content = "uint8 [4]";
  request.input = input;
  request.output = output;
  request.num_bytes = 4;
  request.done = [end](const Status& status) { end->set_value(status); };
  return request;
}

TEST_CASE("WhatIsSentIsReceived") {
  testing::OverBoth();
  const Engines engines = MakeEngines(ConnectAll(2, 1));
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100'000}}) {
    Message sent{std::string(size, 's'), {}}, received{std::string(size, 'r'), {}};
    engines[1]->Receive(received.Request(0, "x"));
    engines[0]->Send(sent.Request(1, "x"));
    CHECK_EQ(sent.Wait(), testing::IsOk());
    CHECK_EQ(received.Wait(), testing::IsOk());
    CHECK(received.bytes == sent.bytes);
  }
}

// A set of two among three ranks, and one rank by itself.
TEST_CASE("CollectivesAreOfTheirRanks") {
  testing::OverBoth();
  const Engines engines = MakeEngines(ConnectAll(3, 1));
  std::string two[2] = {std::string(8, ' '), std::string(8, ' ')}, alone(4, ' ');
  std::promise<Status> ends[3];
  engines[0]->Run(AllGatherOf({0, 2}, "aaaa", two[0].data(), &ends[0]));
  engines[2]->Run(AllGatherOf({0, 2}, "bbbb", two[1].data(), &ends[1]));
  engines[1]->Run(AllGatherOf({1}, "cccc", alone.data(), &ends[2]));
  for (std::promise<Status>& end : ends) CHECK_EQ(end.get_future().get(), testing::IsOk());
  CHECK_EQ(two[0], std::string("aaaabbbb"));
  CHECK_EQ(two[1], std::string("aaaabbbb"));
  CHECK_EQ(alone, std::string("cccc"));
}

// A mistake of the caller's: the engine goes on, with messages and with all-reduces. Rank 2 is the
// first that there is not, and -1 the last.
TEST_CASE("AfterWhatIsRefusedItGoesOn") {
  testing::OverBoth();
  const Engines engines = MakeEngines(ConnectAll(2, 1));
  for (const int nobody : {0, 2, -1}) {
    Message message;
    engines[0]->Send(message.Request(nobody, "x"));
    CHECK_EQ(message.Wait(), testing::StatusIs(StatusCode::kInvalidArgument, ""));
  }
  std::promise<Status> refused;
  std::string output(8, ' ');
  engines[0]->Run(AllGatherOf({1}, "aaaa", output.data(), &refused));
  CHECK_EQ(refused.get_future().get(), testing::StatusIs(StatusCode::kInvalidArgument, ""));
  Message sent{"data", {}}, received{"    ", {}};
  engines[0]->Send(sent.Request(1, "x"));
  engines[1]->Receive(received.Request(0, "x"));
  CHECK_EQ(sent.Wait(), testing::IsOk());
  CHECK_EQ(received.Wait(), testing::IsOk());
  testing::OnEveryRank(2, [&](int rank) {
    CHECK_EQ(testing::AllReduce(engines[rank].get(), {{10}}), testing::IsOk());
  });
}

// Waiting messages end with the reason, on both ranks, and so do all later requests.
TEST_CASE("AnAbortEndsMessages") {
  testing::OverBoth();
  const Engines engines = MakeEngines(ConnectAll(2, 1));
  Message waiting{"    ", {}}, later{"    ", {}}, elsewhere{"    ", {}};
  engines[0]->Receive(waiting.Request(1, "never sent"));
  engines[0]->Abort(Status(StatusCode::kUnavailable, "the user has had enough"));
  const testing::StatusIs reason(StatusCode::kUnavailable, "the user has had enough");
  CHECK_EQ(waiting.Wait(), reason);
  engines[0]->Send(later.Request(1, "x"));
  CHECK_EQ(later.Wait(), reason);
  engines[1]->Receive(elsewhere.Request(0, "never sent"));
  CHECK_EQ(elsewhere.Wait(), reason);
}

// Before it is posted, if it is rejected: an exception thrown there ends the engine, too.
TEST_CASE("WhatFollowsARefusalMayThrow") {
  const Engines engines = MakeEngines(ConnectAll(2, 1));
  Message refused, later{"    ", {}};
  MessageRequest request = refused.Request(2, "x");
  request.done = [](const Status&) { throw std::runtime_error("the user's trouble"); };
  engines[0]->Send(std::move(request));
  engines[0]->Send(later.Request(1, "x"));
  CHECK_EQ(later.Wait(), testing::StatusIs(StatusCode::kInternal, "the user's trouble"));
}

// The sender posts nothing before it learns of the read; ranks that are gone need none.
TEST_CASE("ReadsAreOneSided") {
  testing::OverAll();
  Engines engines = MakeEngines(ConnectAll(3, 1));
  Message notice, last;
  MessageRequest request;
  int peer = -1;
  std::string name;
  for (int i = 0; i < 3; ++i) {  // the sender sleeps in between
    Message read{"    ", {}}, sent{"data", {}};
    request = read.Request(0, "x");
    request.is_read = true;
    engines[1]->Receive(std::move(request));
    CHECK_EQ(engines[0]->AwaitRead(testing::kGenerousSeconds, &peer, &name), testing::IsOk());
    CHECK_EQ(peer, 1);
    CHECK_EQ(name, std::string("x"));
    MessageRequest answer = sent.Request(1, "x");
    answer.is_read = true;
    engines[0]->Send(std::move(answer));
    CHECK_EQ(read.Wait(), testing::IsOk());
    CHECK_EQ(sent.Wait(), testing::IsOk());
    CHECK_EQ(read.bytes, std::string("data"));
    CHECK_EQ(engines[0]->AwaitRead(0.01, &peer, &name), testing::IsOk());
    CHECK_EQ(peer, -1);
  }
  request = notice.Request(2, "done");
  request.is_read = true;
  engines[0]->Receive(std::move(request));
  CHECK_EQ(engines[2]->AwaitRead(testing::kGenerousSeconds, &peer, &name), testing::IsOk());
  CHECK_EQ(name, std::string("done"));
  engines[2] = nullptr;
  CHECK_EQ(notice.Wait(), testing::IsOk());
  request = last.Request(2, "done");
  request.is_read = true;
  engines[0]->Receive(std::move(request));
  CHECK_EQ(last.Wait(), testing::IsOk());
  CHECK_EQ(engines[1]->AwaitRead(0, &peer, &name), testing::IsOk());
  engines[1]->Abort(Status(StatusCode::kUnavailable, "closed"));
  CHECK_EQ(engines[1]->AwaitRead(0, &peer, &name),
           testing::StatusIs(StatusCode::kUnavailable, "closed"));
}

TEST_CASE("AFlushSaysWhatIsLeft") {
  testing::OverBoth();
  std::mutex mutex;  // any thread warns
  std::string warnings;
  LaneEngineOptions options = testing::Patient();
  options.stall_warning_seconds = testing::kShortSeconds;
  options.warn = [&](const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex);
    warnings += text + "\n";
  };
  const auto warned = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return warnings;
  };
  std::vector<Mesh> meshes = ConnectAll(2, 1);
  const auto other = testing::MakeEngine(testing::Patient(), std::move(meshes[1]));
  const auto engine = testing::MakeEngine(options, std::move(meshes[0]));
  engine->Flush();
  CHECK_EQ(warned(), std::string());
  // Small enough to be sent unasked.
  Message sent{"data", {}}, received{"    ", {}};
  engine->Send(sent.Request(1, "not asked for"));
  engine->Flush();
  const std::string after = warned();
  const size_t at = after.find("rank 0 ends, and has waited");
  CHECK(at != std::string::npos);
  CHECK_EQ(after.substr(std::min(at, after.size())), testing::Contains("not asked for"));
  other->Receive(received.Request(0, "not asked for"));
  CHECK_EQ(received.Wait(), testing::IsOk());
  CHECK_EQ(sent.Wait(), testing::IsOk());
}

}  // namespace
}  // namespace tf_libra::lane_engine_messages_test
