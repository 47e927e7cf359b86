#include "ops/lanes/send_queue.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/lanes/frame.h"
#include "ops/lanes/testing.h"

namespace tf_libra::send_queue_test {
namespace {

TransferPtr Made(uint64_t request_id, std::string* data) {
  auto transfer = std::make_shared<Transfer>();
  transfer->request_id = request_id;
  transfer->data = data->data();
  transfer->num_bytes = data->size();
  return transfer;
}

std::string FrameBytes(Frame::Kind kind) {
  Frame frame;
  frame.kind = kind;
  return std::string(reinterpret_cast<const char*>(&frame), sizeof(frame));
}

// All that there is, at most so many bytes at a time; `through` are those that ended, in order.
std::string SendAll(SendQueue* outgoing, size_t most, std::vector<TransferPtr>* through) {
  std::string sent;
  iovec runs[2];
  while (outgoing->Next(runs)) {
    size_t left = most;
    for (const iovec& run : runs) {
      const size_t count = std::min(left, run.iov_len);
      sent.append(static_cast<const char*>(run.iov_base), count);
      left -= count;
    }
    if (const TransferPtr one = outgoing->Sent(most - left)) through->push_back(one);
  }
  return sent;
}

// What a reader makes of it: by id, the message; and how many fragments came.
std::map<uint64_t, std::string> Read(const std::string& bytes, std::vector<uint64_t>* fragments) {
  std::map<uint64_t, std::string> messages;
  for (size_t at = 0; at < bytes.size();) {
    Frame frame;
    size_t length = 0;
    CHECK_EQ(ReadFrame(bytes.data() + at, bytes.size() - at, &frame, &length), testing::IsOk());
    if (length == 0) break;
    at += length;
    if (frame.kind != Frame::kData) continue;
    fragments->push_back(frame.id);
    messages[frame.id] += bytes.substr(at, frame.num_bytes);
    at += frame.num_bytes;
  }
  return messages;
}

TEST_CASE("NothingIsNothing") {
  SendQueue outgoing;
  iovec runs[2];
  CHECK(!outgoing.Next(runs));
  outgoing.Add(FrameBytes(Frame::kConfirm));
  CHECK(outgoing.Next(runs));
  CHECK_EQ(runs[0].iov_len, sizeof(Frame));
  CHECK_EQ(runs[1].iov_len, 0u);
  CHECK(outgoing.Sent(sizeof(Frame)) == nullptr);
  CHECK(!outgoing.Next(runs));
}

TEST_CASE("MessagesTakeTurns") {
  constexpr size_t kFragment = SendQueue::kFragmentBytes;
  for (const size_t most : {size_t{7919}, size_t{1} << 30}) {
    SendQueue outgoing;
    std::string large(2 * kFragment + 1, 'l'), small(3, 's'), empty;
    const std::vector<TransferPtr> sends = {Made(1, &large), Made(2, &small), Made(3, &empty)};
    for (const TransferPtr& send : sends) outgoing.Add(send);
    std::vector<TransferPtr> through;
    const std::string sent = SendAll(&outgoing, most, &through);
    std::vector<uint64_t> fragments;
    auto messages = Read(sent, &fragments);
    CHECK(fragments == std::vector<uint64_t>({1, 2, 3, 1, 1}));
    CHECK((messages[1] == large && messages[2] == small && messages[3].empty()));
    CHECK(through == std::vector<TransferPtr>({sends[1], sends[2], sends[0]}));
  }
}

// However few bytes are taken at a time, and whatever is added in between.
TEST_CASE("FramesStandBetweenFragments") {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    SendQueue outgoing;
    std::string data(SendQueue::kFragmentBytes + random() % 1000, 'd'), sent;
    const TransferPtr send = Made(9, &data);
    outgoing.Add(send);
    std::vector<TransferPtr> through;
    iovec runs[2];
    size_t num_frames = 0;
    while (outgoing.Next(runs)) {
      size_t left = 1 + random() % 50'000;
      const size_t most = left;
      for (const iovec& run : runs) {
        const size_t count = std::min(left, run.iov_len);
        sent.append(static_cast<const char*>(run.iov_base), count);
        left -= count;
      }
      if (const TransferPtr one = outgoing.Sent(most - left)) through.push_back(one);
      if (num_frames < 3 && random() % 2 == 0) {
        outgoing.Add(FrameBytes(Frame::kConfirm));
        ++num_frames;
      }
    }
    std::vector<uint64_t> fragments;
    CHECK(Read(sent, &fragments)[9] == data);
    CHECK_EQ(fragments.size(), 2u);
    CHECK_EQ(sent.size(), data.size() + (2 + num_frames) * sizeof(Frame));
    CHECK(through == std::vector<TransferPtr>({send}));
  }
}

// Bytes go out as they become ready and the receiver has room, whichever comes last.
TEST_CASE("SendIsQueuedWhileSomethingOfItMayMove") {
  std::string data(1000, 'd');
  const TransferPtr send = Made(7, &data);
  send->num_ready = 0;
  send->credit = 300;
  SendQueue outgoing;
  std::vector<TransferPtr> through;
  std::vector<uint64_t> fragments;
  std::string sent;
  const auto add = [&](size_t num_ready, size_t credit) {
    send->num_ready = num_ready;
    send->credit = credit;
    outgoing.Add(send);
    outgoing.Add(send);  // it is there once
    sent += SendAll(&outgoing, 1 << 20, &through);
    return send->num_moved;
  };
  CHECK_EQ(add(0, 300), 0u);
  CHECK_EQ(add(200, 300), 200u);
  CHECK_EQ(add(1000, 300), 300u);
  CHECK_EQ(add(1000, 300), 300u);
  CHECK(through.empty());
  CHECK_EQ(add(1000, 1000), 1000u);
  CHECK(through == std::vector<TransferPtr>({send}));
  CHECK(Read(sent, &fragments)[7] == data);
  CHECK_EQ(fragments.size(), 3u);
}

// The receiver drops the fragment that is on its way: all is sent again once it is requested.
TEST_CASE("DroppedBytesAreSentAgain") {
  std::string data(1000, 'd'), sent;
  const TransferPtr send = Made(7, &data);
  send->credit = 600;
  SendQueue outgoing;
  outgoing.Add(send);
  iovec runs[2];
  CHECK(outgoing.Next(runs));
  CHECK(outgoing.Sent(sizeof(Frame) + 200) == nullptr);
  send->is_dropped = true;
  send->credit = 0;
  CHECK(outgoing.Next(runs));
  CHECK_EQ(runs[1].iov_len, 400u);  // the fragment ends as it was announced
  CHECK(outgoing.Sent(400) == nullptr);
  CHECK(!outgoing.Next(runs));
  CHECK_EQ(send->num_moved, 0u);
  send->credit = 1000;
  outgoing.Add(send);
  std::vector<TransferPtr> through;
  std::vector<uint64_t> fragments;
  sent = SendAll(&outgoing, 1 << 20, &through);
  CHECK(Read(sent, &fragments)[7] == data);
  CHECK(through == std::vector<TransferPtr>({send}));
}

}  // namespace
}  // namespace tf_libra::send_queue_test
