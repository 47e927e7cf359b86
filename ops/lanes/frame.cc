#include "ops/lanes/frame.h"

#include <cstring>

namespace tf_libra {
namespace {

bool HasText(const Frame& frame) {
  return frame.kind == Frame::kOffer || frame.kind == Frame::kRequest;
}

bool IsFrame(const Frame& frame) {
  if (frame.magic != Frame::kMagic || frame.num_text_bytes > Frame::kMaxTextBytes) return false;
  if (frame.kind < Frame::kOffer || frame.kind > Frame::kDropped) return false;
  return HasText(frame) == (frame.num_text_bytes > 0);
}

// A key of two bytes at least, which a zero ends, and no other zero.
bool IsText(const char* text, size_t size) {
  const void* const end = std::memchr(text, 0, size);
  if (end == nullptr) return false;
  const size_t key = static_cast<const char*>(end) - text;
  return key >= 2 && std::memchr(text + key + 1, 0, size - key - 1) == nullptr;
}

}  // namespace

Status ReadFrame(const char* bytes, size_t size, Frame* frame, size_t* length) {
  *length = 0;
  if (size < sizeof(Frame)) return Status();
  std::memcpy(frame, bytes, sizeof(Frame));
  const auto invalid = [] {
    return Status(StatusCode::kFailedPrecondition, "sent something that is no message");
  };
  if (!IsFrame(*frame)) return invalid();
  if (size - sizeof(Frame) < frame->num_text_bytes) return Status();
  if (HasText(*frame) && !IsText(bytes + sizeof(Frame), frame->num_text_bytes)) return invalid();
  *length = sizeof(Frame) + frame->num_text_bytes;
  return Status();
}

void SplitText(const char* text, size_t size, std::string* key, std::string* content) {
  *key = text;
  content->assign(text + key->size() + 1, size - key->size() - 1);
}

bool FitsFrame(const std::string& key, const std::string& content) {
  return key.size() >= 2 && key.size() + 1 + content.size() <= Frame::kMaxTextBytes &&
         key.find('\0') == std::string::npos && content.find('\0') == std::string::npos;
}

std::string ToBytes(const Frame& frame) {
  return std::string(reinterpret_cast<const char*>(&frame), sizeof(frame));
}

std::string WithText(Frame frame, const std::string& key, const std::string& content) {
  frame.num_text_bytes = static_cast<uint16_t>(key.size() + 1 + content.size());
  std::string bytes;
  bytes.reserve(sizeof(frame) + frame.num_text_bytes);
  bytes.append(reinterpret_cast<const char*>(&frame), sizeof(frame));
  bytes += key;
  bytes += '\0';
  return bytes += content;
}

}  // namespace tf_libra
