#include "ops/lanes/frame.h"

#include <cstring>
#include <random>
#include <string>

#include "ops/lanes/testing.h"

namespace tf_libra {
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

void IsReadAsItWasWritten() {
  for (const Frame::Kind kind : {Frame::kOffer, Frame::kAsk}) {
    const std::string bytes = WithText(Made(kind), "mlayer/activation", "float32 [8, 16]");
    Frame frame;
    size_t length = 0;
    CHECK_OK(ReadFrame(bytes.data(), bytes.size(), &frame, &length));
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
  CHECK_OK(ReadFrame(data.data(), data.size(), &frame, &length));
  CHECK_EQ(length, sizeof(Frame));
}

void BeginningOfAFrameIsWaitedFor() {
  const std::string bytes = WithText(Made(Frame::kAsk), "mx", "");
  for (size_t size = 0; size < bytes.size(); ++size) {
    Frame frame;
    size_t length = 1;
    CHECK_OK(ReadFrame(bytes.data(), size, &frame, &length));
    CHECK_EQ(length, 0u);
  }
}

void CheckRefused(const std::string& bytes) {
  Frame frame;
  size_t length = 0;
  CHECK_STATUS(ReadFrame(bytes.data(), bytes.size(), &frame, &length),
               StatusCode::kFailedPrecondition, "sent something that is no message");
}

void WhatIsNoFrame() {
  CheckRefused(std::string(64, 'x'));
  Frame frame = Made(Frame::kData);
  frame.magic = 1;
  CheckRefused(Bytes(frame));
  for (const int kind : {0, 6, 65535}) {
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

void WhatFits() {
  CHECK_TRUE(FitsFrame("mx", ""));
  CHECK_TRUE(FitsFrame(std::string(Frame::kMaxTextBytes - 1, 'x'), ""));
  CHECK_TRUE(!FitsFrame(std::string(Frame::kMaxTextBytes, 'x'), ""));
  CHECK_TRUE(!FitsFrame("m", "float32"));
  CHECK_TRUE(!FitsFrame(std::string("m\0x", 3), ""));
  CHECK_TRUE(!FitsFrame("mx", std::string("\0", 1)));
}

}  // namespace
}  // namespace tf_libra

int main(int argc, char** argv) {
  return tf_libra::testing::RunTests(
      {
          {"IsReadAsItWasWritten", tf_libra::IsReadAsItWasWritten},
          {"BeginningOfAFrameIsWaitedFor", tf_libra::BeginningOfAFrameIsWaitedFor},
          {"WhatIsNoFrame", tf_libra::WhatIsNoFrame},
          {"WhatFits", tf_libra::WhatFits},
      },
      argc, argv);
}
