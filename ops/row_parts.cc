#include "ops/row_parts.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {
namespace {

// Bytes of this machine's memory: what other ranks announce may not be more.
size_t MemoryBytes() {
  static const size_t bytes = [] {
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGE_SIZE);
    return pages > 0 && page_bytes > 0 ? static_cast<size_t>(pages) * page_bytes : SIZE_MAX;
  }();
  return bytes;
}

}  // namespace

absl::Status FindRowParts(const tensorflow::Tensor& own, const tensorflow::Tensor& ends,
                          int world_size, int rank, RowParts* rows) {
  bool is_valid = own.dims() > 0 && ends.dims() == 1 && ends.NumElements() == world_size;
  if (is_valid) {
    size_t row_bytes = tensorflow::DataTypeSize(own.dtype());
    for (int i = 1; i < own.dims(); ++i) row_bytes *= own.dim_size(i);
    const size_t most_rows = row_bytes == 0 ? SIZE_MAX : MemoryBytes() / row_bytes;
    int64_t end = 0;
    for (int i = 0; is_valid && i < world_size; ++i) {
      const int64_t begin = end;
      end = ends.vec<int32_t>()(i);
      is_valid = begin <= end && static_cast<size_t>(end) <= most_rows &&
                 (i != rank || end - begin == own.dim_size(0));
      rows->parts.push_back({begin * row_bytes, end * row_bytes});
    }
    rows->shape = own.shape();
    if (is_valid) return rows->shape.SetDimWithStatus(0, end);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "ends must ascend, one for each of ", world_size, " ranks, with as many rows of rank ", rank,
      " as in shape ", own.shape().DebugString(), ", and fit into this machine's memory, got ",
      ends.SummarizeValue(16)));
}

void PlaceOwnRows(const tensorflow::Tensor& own, ByteRange part, tensorflow::Tensor* all) {
  if (part.size() == 0) return;
  std::memcpy(static_cast<char*>(all->data()) + part.begin, own.data(), part.size());
}

}  // namespace tf_libra
