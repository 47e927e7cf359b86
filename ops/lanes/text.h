// UTF-8 text of errors: Python decodes them, and raises an exception for incomplete characters.
#ifndef TF_LIBRA_OPS_LANES_TEXT_H_
#define TF_LIBRA_OPS_LANES_TEXT_H_

#include <cstddef>
#include <string>

namespace tf_libra {

// The text with U+FFFD in place of each sequence that is not UTF-8. Valid text is not copied.
std::string ValidText(std::string text);

// The longest prefix of a valid text with at most `max_bytes` bytes and whole characters.
std::string CutText(const std::string& text, size_t max_bytes);

// "rank 3", as errors name it.
std::string RankText(int rank);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_TEXT_H_
