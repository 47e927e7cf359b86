// Digests that are the same on all ranks.
#ifndef TF_LIBRA_OPS_LANES_FNV_H_
#define TF_LIBRA_OPS_LANES_FNV_H_

#include <cstdint>
#include <string>

namespace tf_libra {

// FNV-1a: names two ranks' operations the same; it need not withstand an adversary.
class Fnv {
 public:
  void Add(const std::string& text) {
    for (const char c : text) AddByte(static_cast<uint8_t>(c));
    AddByte(0xff);  // "ab", "c" is not "a", "bc"
  }
  void Add(int64_t value) {
    for (int shift = 0; shift < 64; shift += 8) AddByte(static_cast<uint8_t>(value >> shift));
  }
  uint64_t value() const { return value_; }

 private:
  void AddByte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3u; }
  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_FNV_H_
