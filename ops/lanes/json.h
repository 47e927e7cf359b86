// JSON encoding of text.
#ifndef TF_LIBRA_OPS_LANES_JSON_H_
#define TF_LIBRA_OPS_LANES_JSON_H_

#include <cstdio>
#include <string>

namespace tf_libra {

// `text` in quotes, with what JSON does not allow there escaped. UTF-8 stays as it is.
inline std::string QuotedJson(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_JSON_H_
