// Tensors in parts: views of one piece of memory, each of which an all-reduce of its own writes.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_libra {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

class LibraCutKernel : public tensorflow::OpKernel {
 public:
  explicit LibraCutKernel(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    int num_parts = 0;
    OP_REQUIRES_OK(context, context->GetAttr("K", &num_parts));
    std::vector<int64_t> starts;
    OP_REQUIRES_OK(context, context->GetAttr("starts", &starts));
    const int64_t item = tensorflow::DataTypeSize(input_type(0));
    bool is_right = static_cast<int>(starts.size()) == num_parts && starts[0] == 0;
    for (size_t i = 0; i < starts.size(); ++i) {
      is_right = is_right && starts[i] % item == 0 && (i == 0 || starts[i - 1] < starts[i]);
      elements_.push_back(starts[i] / item);
    }
    OP_REQUIRES(context, is_right,
                absl::InvalidArgumentError(absl::StrCat(
                    "LibraCut: starts must be ", num_parts, " multiples of ", item,
                    " bytes, an element, ascending from 0, got ", absl::StrJoin(starts, ", "))));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    // Traces leave out what is cheap, and where this is, the gradient was produced.
    tsl::profiler::TraceMe event([this] { return absl::StrCat(name(), ":", type_string()); },
                                 /*level=*/1);
    const Tensor& input = context->input(0);
    Tensor* allocated = nullptr;
    int forwarded = -1;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, input.shape(),
                                                                      &allocated, &forwarded));
    const Tensor whole = *allocated;
    if (forwarded < 0 && input.TotalBytes() > 0) {
      std::memcpy(whole.data(), context->input(0).data(), whole.TotalBytes());
    }
    const int64_t size = whole.NumElements();
    Tensor flat;
    OP_REQUIRES(context, flat.CopyFrom(whole, TensorShape({size})),
                absl::InternalError("LibraCut: a tensor cannot be read as a vector"));
    for (size_t i = 0; i < elements_.size(); ++i) {
      // If the tensor has fewer elements than the plan expects, the last parts are empty.
      const int64_t start = std::min(elements_[i], size);
      const int64_t stop = i + 1 < elements_.size() ? std::min(elements_[i + 1], size) : size;
      context->set_output(static_cast<int>(i) + 1, flat.Slice(start, stop));
    }
  }

  bool IsExpensive() override { return false; }

 private:
  std::vector<int64_t> elements_;  // where each part begins
};

REGISTER_KERNEL_BUILDER(Name("LibraCut").Device(tensorflow::DEVICE_CPU), LibraCutKernel);

class LibraJoinKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    const Tensor& whole = context->input(0);
    size_t num_bytes = 0;
    for (int i = 1; i < context->num_inputs(); ++i) num_bytes += context->input(i).TotalBytes();
    OP_REQUIRES(
        context, num_bytes == whole.TotalBytes(),
        absl::InvalidArgumentError(absl::StrCat("LibraJoin: the parts have ", num_bytes,
                                                " bytes, the whole has ", whole.TotalBytes())));
    char* next = static_cast<char*>(whole.data());
    for (int i = 1; i < context->num_inputs(); ++i) {
      const Tensor& part = context->input(i);
      if (part.TotalBytes() == 0) continue;
      if (part.data() != next) std::memcpy(next, part.data(), part.TotalBytes());
      next += part.TotalBytes();
    }
    context->set_output(0, whole);
  }

  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("LibraJoin").Device(tensorflow::DEVICE_CPU), LibraJoinKernel);

}  // namespace
}  // namespace tf_libra
