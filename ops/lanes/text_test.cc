#include "ops/lanes/text.h"

#include <string>

#include "ops/lanes/testing.h"

namespace tf_libra::text_test {
namespace {

// Of 1, 2, 3 and 4 bytes: x, U+00E4, U+20AC, U+1F600.
const std::string kCharacters[] = {"x", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
const std::string kReplacement = "\xEF\xBF\xBD";

std::string Repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

TEST_CASE("TextIsCutBetweenCharacters") {
  for (const std::string& character : kCharacters) {
    for (size_t before = 0; before < 5; ++before) {
      const std::string text = std::string(before, '-') + Repeated(character, 20);
      for (size_t max_bytes = 0; max_bytes <= text.size() + 2; ++max_bytes) {
        const std::string cut = CutText(text, max_bytes);
        CHECK_EQ(text.substr(0, cut.size()), cut);
        CHECK_EQ(ValidText(cut), cut);
        if (max_bytes >= text.size()) {
          CHECK_EQ(cut, text);
        } else {  // no further character fits
          CHECK(cut.size() <= max_bytes);
          CHECK(max_bytes - cut.size() < (cut.size() < before ? 1 : character.size()));
        }
      }
    }
  }
  CHECK_EQ(CutText("", 0), "");
}

TEST_CASE("ValidTextStaysAsItIs") {
  for (const std::string text :
       {"", "plain", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
        "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "a\xC3\xA4 \xE2\x82\xAC"}) {
    CHECK_EQ(ValidText(text), text);
  }
  const std::string with_zero("a\0b", 3);
  CHECK_EQ(ValidText(with_zero), with_zero);
}

// As Python's errors="replace" does.
TEST_CASE("InvalidBytesAreReplaced") {
  const struct {
    std::string bytes;
    size_t replacements;
  } kCases[] = {
      {"\x80", 1},  // a continuation without a beginning
      {"\xBF\x80", 2},
      {"\xC3", 1},  // cut characters
      {"\xE2\x82", 1},
      {"\xF0\x9F\x98", 1},
      {"\xC0\xAF", 2},  // longer than need be
      {"\xE0\x9F\xBF", 3},
      {"\xF0\x8F\xBF\xBF", 4},
      {"\xED\xA0\x80", 3},      // a surrogate
      {"\xF4\x90\x80\x80", 4},  // beyond Unicode
      {"\xF5", 1},
      {"\xFF\xFE", 2},
      {"\xE2\x82\xC3", 2},  // cut characters in a row
  };
  for (const auto& one : kCases) {
    const std::string replaced = Repeated(kReplacement, one.replacements);
    CHECK_EQ(ValidText(one.bytes), replaced);
    CHECK_EQ(ValidText("x" + one.bytes + "x"), "x" + replaced + "x");
    CHECK_EQ(ValidText("\xC3\xA4" + one.bytes + "\xE2\x82\xAC"),
             "\xC3\xA4" + replaced + "\xE2\x82\xAC");
  }
}

}  // namespace
}  // namespace tf_libra::text_test
