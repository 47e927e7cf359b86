#include "ops/lanes/json.h"

#include <string>

#include "ops/lanes/testing.h"

namespace tf_libra::json_test {
namespace {

TEST_CASE("TextIsQuoted") {
  CHECK_EQ(QuotedJson(""), std::string(R"("")"));
  CHECK_EQ(QuotedJson("layer/kernel:0"), std::string(R"("layer/kernel:0")"));
  CHECK_EQ(QuotedJson("\"\\/\"\\"), std::string(R"("\"\\/\"\\")"));
}

// U+001F is the last that JSON forbids.
TEST_CASE("ControlsAreEscaped") {
  CHECK_EQ(QuotedJson(std::string(1, '\0')), std::string(R"("\u0000")"));
  CHECK_EQ(QuotedJson("a\nb\tc"), std::string(R"("a\u000ab\u0009c")"));
  CHECK_EQ(QuotedJson("\x1f"), std::string(R"("\u001f")"));
  CHECK_EQ(QuotedJson("\x20"), std::string("\" \""));
  CHECK_EQ(QuotedJson("\x7f"), std::string("\"\x7f\""));
}

// Bytes above 0x7f are no controls, though a char may be negative; nor are those that are no UTF-8
// a reason to fail.
TEST_CASE("OtherBytesStay") {
  CHECK_EQ(QuotedJson("Schicht-\xc3\xa4"), std::string("\"Schicht-\xc3\xa4\""));
  for (int byte = 0x80; byte <= 0xff; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    CHECK_EQ(QuotedJson(one), "\"" + one + "\"");
  }
}

}  // namespace
}  // namespace tf_libra::json_test
