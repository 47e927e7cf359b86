#include "ops/lanes/receive_parser.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::receive_parser_test {
namespace {

using News = ReceiveParser::News;

TransferPtr Wanted(std::string* room) {
  auto transfer = std::make_shared<Transfer>();
  transfer->way = Transfer::Way::kReceive;
  transfer->data = room->data();
  transfer->num_bytes = room->size();
  return transfer;
}

std::string Data(uint64_t id, const std::string& payload) {
  Frame frame;
  frame.kind = Frame::kData;
  frame.id = id;
  frame.num_bytes = payload.size();
  return std::string(reinterpret_cast<const char*>(&frame), sizeof(frame)) + payload;
}

std::string Offer(const std::string& key, const std::string& content) {
  Frame frame;
  frame.kind = Frame::kOffer;
  return WithText(frame, key, content);
}

// What a reader makes of it: texts, and "through" for each message that is.
struct Reader {
  ReceiveParser incoming;
  std::vector<TransferPtr> wanted;  // by id
  std::vector<std::string> heard;
  Status status;

  // At most so many bytes at a time.
  void Read(const std::string& bytes, size_t most) {
    for (size_t at = 0; at < bytes.size() && status.ok();) {
      iovec runs[2];
      incoming.Room(runs);
      size_t left = std::min(most, bytes.size() - at), received = 0;
      for (const iovec& run : runs) {
        const size_t count = std::min(left, run.iov_len);
        if (count > 0) std::memcpy(run.iov_base, bytes.data() + at + received, count);
        received += count;
        left -= count;
      }
      CHECK(received > 0);  // there is always room
      at += received;
      incoming.Received(received);
      while (HearNext()) {
      }
    }
  }

  bool HearNext() {
    Frame frame;
    const char* text = nullptr;
    TransferPtr through;
    switch (incoming.Next(&frame, &text, &through, &status)) {
      case News::kFrame:
        if (frame.kind == Frame::kData) {
          incoming.Expect(wanted[frame.id], frame.num_bytes);
        } else {
          heard.emplace_back(text, frame.num_text_bytes);
        }
        return true;
      case News::kThrough:
        heard.push_back("through");
        return true;
      default:
        return false;
    }
  }
};

// However few bytes come at a time: texts as long as can be, fragments of two messages in turns,
// one without bytes, and one that is larger than what is kept.
TEST_CASE("AllGoesWhereItBelongs") {
  const std::string text(Frame::kMaxTextBytes - 4, 't');
  std::mt19937 random(3);
  std::string large(100'000, 0);
  for (char& one : large) one = static_cast<char>(random());
  const std::string key("mk");
  const std::string bytes = Offer(key, text) + Data(0, large.substr(0, 30'000)) + Data(1, "abc") +
                            Offer(key, "x") + Data(2, "") + Data(0, "") + Data(1, "de") +
                            Data(0, large.substr(30'000)) + Offer(key, text);
  const std::string first = key + '\0' + text, second = key + '\0' + "x";
  for (const size_t most : {size_t{1}, size_t{23}, size_t{7919}, size_t{1} << 30}) {
    std::string rooms[3] = {std::string(large.size(), ' '), std::string(5, ' '), ""};
    Reader reader;
    for (std::string& room : rooms) reader.wanted.push_back(Wanted(&room));
    reader.Read(bytes, most);
    CHECK_EQ(reader.status, testing::IsOk());
    CHECK(rooms[0] == large);
    CHECK_EQ(rooms[1], std::string("abcde"));
    CHECK(reader.heard ==
          std::vector<std::string>({first, second, "through", "through", "through", first}));
  }
}

// Each byte is taken before the ring comes to its place again.
TEST_CASE("RingTakesMoreThanItHolds") {
  std::string sent(100'001, 0);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i % 251);
  const std::string bytes = Data(0, sent.substr(0, 60'000)) + Data(0, sent.substr(60'000));
  for (const size_t most : {size_t{1}, size_t{23}, size_t{7919}, size_t{1} << 30}) {
    std::string ring(1024, ' '), taken;
    Reader reader;
    reader.wanted.push_back(Wanted(&ring));
    reader.wanted[0]->num_bytes = sent.size();
    reader.wanted[0]->ring_bytes = ring.size();
    reader.wanted[0]->on_progress = [&](size_t num_moved) {
      CHECK(num_moved - taken.size() <= ring.size() - taken.size() % ring.size());
      taken += ring.substr(taken.size() % ring.size(), num_moved - taken.size());
    };
    reader.Read(bytes, most);
    CHECK(taken == sent);
    CHECK(reader.heard == std::vector<std::string>({"through"}));
  }
}

TEST_CASE("WhatIsNoFrameIsInvalid") {
  Reader reader;
  std::string bytes = Data(0, "");
  bytes[0] ^= 1;
  reader.Read(Offer("mk", "x") + bytes, 5);
  CHECK_EQ(reader.status, testing::StatusIs(StatusCode::kFailedPrecondition, "no message"));
  CHECK_EQ(reader.heard.size(), 1u);
}

}  // namespace
}  // namespace tf_libra::receive_parser_test
