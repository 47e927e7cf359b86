#include "ops/lanes/text.h"

namespace tf_libra {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

bool IsContinuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// Bytes of the sequence that begins at `at`. Of an invalid one, those that could have begun a
// character (Unicode, table 3-7): one replacement stands for them.
size_t SequenceBytes(const std::string& text, size_t at, bool* is_valid) {
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  *is_valid = lead < 0x80;
  if (*is_valid || lead < 0xC2 || lead > 0xF4) return 1;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Neither longer than need be, nor a surrogate, nor beyond U+10FFFF.
  const unsigned char least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  size_t count = 1;
  while (count < length && at + count < text.size() && IsContinuation(byte(at + count)) &&
         (count > 1 || (byte(at + 1) >= least && byte(at + 1) <= most))) {
    ++count;
  }
  *is_valid = count == length;
  return count;
}

}  // namespace

std::string ValidText(std::string text) {
  bool is_valid = true;
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = SequenceBytes(text, at, &is_valid);
    if (!is_valid) break;
    at += length;
  }
  if (at == text.size()) return text;
  std::string valid = text.substr(0, at);
  while (at < text.size()) {
    const size_t length = SequenceBytes(text, at, &is_valid);
    valid += is_valid ? text.substr(at, length) : kReplacement;
    at += length;
  }
  return valid;
}

std::string CutText(const std::string& text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && IsContinuation(static_cast<unsigned char>(text[end]))) --end;
  return text.substr(0, end);
}

std::string RankText(int rank) { return "rank " + std::to_string(rank); }

}  // namespace tf_libra
