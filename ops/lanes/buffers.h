// Tensors of one all-reduce, seen as one range of bytes that is never copied together.
#ifndef TF_LIBRA_OPS_LANES_BUFFERS_H_
#define TF_LIBRA_OPS_LANES_BUFFERS_H_

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tf_libra {

// One tensor: `output` may be the same memory as `input`.
struct TensorView {
  const void* input = nullptr;
  void* output = nullptr;
  size_t num_bytes = 0;
};

// Bytes [begin, end) of the tensors laid end to end.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

// Part `index` of `parts` of a range of whole elements, as even as whole elements allow.
inline ByteRange Part(ByteRange range, size_t element_size, size_t parts, size_t index) {
  const size_t count = range.size() / element_size;
  return {range.begin + count * index / parts * element_size,
          range.begin + count * (index + 1) / parts * element_size};
}

class Buffers {
 public:
  Buffers() = default;
  explicit Buffers(std::vector<TensorView> tensors) : tensors_(std::move(tensors)) {
    starts_.reserve(tensors_.size());
    for (const TensorView& tensor : tensors_) {
      starts_.push_back(num_bytes_);
      num_bytes_ += tensor.num_bytes;
    }
  }

  size_t num_bytes() const { return num_bytes_; }

  // Calls `visit(input, output, size)` for each run of `range` that lies in one tensor, until
  // it returns false.
  template <typename Visit>
  void ForEachRun(ByteRange range, Visit visit) const {
    if (range.size() == 0) return;
    size_t i = std::upper_bound(starts_.begin(), starts_.end(), range.begin) - starts_.begin() - 1;
    for (size_t at = range.begin; at < range.end; ++i) {
      const size_t offset = at - starts_[i];
      if (offset >= tensors_[i].num_bytes) continue;  // an empty tensor
      const size_t size = std::min(range.end - at, tensors_[i].num_bytes - offset);
      if (!visit(static_cast<const char*>(tensors_[i].input) + offset,
                 static_cast<char*>(tensors_[i].output) + offset, size)) {
        return;
      }
      at += size;
    }
  }

 private:
  std::vector<TensorView> tensors_;
  std::vector<size_t> starts_;
  size_t num_bytes_ = 0;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_BUFFERS_H_
