#include "ops/lanes/frame.h"

#include <cstring>
#include <random>
#include <string>

#include "ops/lanes/testing.h"

namespace tf_libra::frame_test {
namespace {

Frame Made(Frame::Kind kind) {
  Frame frame;
  frame.kind = kind;
  frame.id = 7;
  frame.num_bytes = 1u << 30;
  return frame;
}

std::string Bytes(const Frame& frame) {
  return std::string(reinterpret_cast<const char*>(&frame), sizeof(frame));
}

TEST_CASE("IsReadAsItWasWritten") {
  for (const Frame::Kind kind : {Frame::kOffer, Frame::kRequest}) {
    const std::string bytes = WithText(Made(kind), "mlayer/activation", "float32 [8, 16]");
    Frame frame;
    size_t length = 0;
    CHECK_EQ(ReadFrame(bytes.data(), bytes.size(), &frame, &length), testing::IsOk());
    CHECK_EQ(length, bytes.size());
    CHECK_EQ(frame.id, 7u);
    CHECK_EQ(frame.num_bytes, 1u << 30);
    std::string key, content;
    SplitText(bytes.data() + sizeof(Frame), frame.num_text_bytes, &key, &content);
    CHECK_EQ(key, std::string("mlayer/activation"));
    CHECK_EQ(content, std::string("float32 [8, 16]"));
  }
  const std::string data = Bytes(Made(Frame::kData)) + "payload";
  Frame frame;
  size_t length = 0;
  CHECK_EQ(ReadFrame(data.data(), data.size(), &frame, &length), testing::IsOk());
  CHECK_EQ(length, sizeof(Frame));
}

TEST_CASE("BeginningOfAFrameIsWaitedFor") {
  const std::string bytes = WithText(Made(Frame::kRequest), "mx", "");
  for (size_t size = 0; size < bytes.size(); ++size) {
    Frame frame;
    size_t length = 1;
    CHECK_EQ(ReadFrame(bytes.data(), size, &frame, &length), testing::IsOk());
    CHECK_EQ(length, 0u);
  }
}

void CheckRefused(const std::string& bytes) {
  Frame frame;
  size_t length = 0;
  CHECK_EQ(ReadFrame(bytes.data(), bytes.size(), &frame, &length),
           testing::StatusIs(StatusCode::kFailedPrecondition, "sent something that is no message"));
}

TEST_CASE("WhatIsNoFrame") {
  CheckRefused(std::string(64, 'x'));
  Frame frame = Made(Frame::kData);
  frame.magic = 1;
  CheckRefused(Bytes(frame));
  for (const int kind : {0, 8, 65535}) {
    frame = Made(Frame::kData);
    frame.kind = static_cast<uint16_t>(kind);
    CheckRefused(Bytes(frame));
  }
  CheckRefused(Bytes(Made(Frame::kOffer)));  // no text
  frame = Made(Frame::kData);
  frame.num_text_bytes = 4;
  CheckRefused(Bytes(frame) + "abc");
  frame = Made(Frame::kOffer);
  frame.num_text_bytes = Frame::kMaxTextBytes + 1;
  CheckRefused(Bytes(frame) + std::string(Frame::kMaxTextBytes + 1, 'a'));
  for (const std::string& text : {std::string("abc"), std::string("a\0b", 3),
                                  std::string("ab\0c\0", 5), std::string("\0\0", 2)}) {
    frame.num_text_bytes = static_cast<uint16_t>(text.size());
    CheckRefused(Bytes(frame) + text);
  }
}

TEST_CASE("WhatFits") {
  CHECK(FitsFrame("mx", ""));
  CHECK(FitsFrame(std::string(Frame::kMaxTextBytes - 1, 'x'), ""));
  CHECK(!FitsFrame(std::string(Frame::kMaxTextBytes, 'x'), ""));
  CHECK(!FitsFrame("m", "float32"));
  CHECK(!FitsFrame(std::string("m\0x", 3), ""));
  CHECK(!FitsFrame("mx", std::string("\0", 1)));
}

}  // namespace
}  // namespace tf_libra::frame_test
