#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_libra {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status ReceivedShape(InferenceContext* context) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(context->MakeShapeFromShapeTensor(0, &shape));
  context->set_output(0, shape);
  context->set_output(1, context->Scalar());
  return absl::OkStatus();
}

absl::Status CollectiveShape(InferenceContext* context) {
  std::string kind;
  std::vector<int> ranks;
  TF_RETURN_IF_ERROR(context->GetAttr("kind", &kind));
  TF_RETURN_IF_ERROR(context->GetAttr("ranks", &ranks));
  const auto size = static_cast<int64_t>(ranks.size());
  ShapeHandle shape = context->input(0);
  if (kind == "all_gather" || kind == "reduce_scatter") {
    TF_RETURN_IF_ERROR(context->WithRankAtLeast(shape, 1, &shape));
    DimensionHandle first = context->Dim(shape, 0);
    if (kind == "all_gather") {
      TF_RETURN_IF_ERROR(context->Multiply(first, size, &first));
    } else {
      TF_RETURN_IF_ERROR(context->Divide(first, size, /*evenly_divisible=*/true, &first));
    }
    TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, first, &shape));
  }
  context->set_output(0, shape);
  context->set_output(1, context->Scalar());
  return absl::OkStatus();
}

}  // namespace

#define TF_LIBRA_MESSAGE_TYPES                                                                  \
  "T: {half, bfloat16, float, double, bool, int8, uint8, int16, uint16, int32, uint32, int64, " \
  "uint64}"

REGISTER_OP("LibraSend")
    .Attr(TF_LIBRA_MESSAGE_TYPES)
    .Attr("to_rank: int >= 0")
    .Attr("tensor_name: string")
    .Attr("one_sided: bool = false")
    .Input("tensor: T")
    .Output("sent: T")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sends a tensor to another rank, which receives it by the same name. Does not wait for that.

sent: zero.
tensor_name: of what is under way at once between two ranks in one direction, the only one.
one_sided: the answer to a receive of which TfLibraAwaitRead told this rank.
)doc");

REGISTER_OP("LibraReceiveStart")
    .Attr(TF_LIBRA_MESSAGE_TYPES)
    .Attr("from_rank: int >= 0")
    .Attr("tensor_name: string")
    .Attr("one_sided: bool = false")
    .Input("shape: int64")
    .Output("started: T")
    .Output("pending: variant")
    .SetIsStateful()
    .SetShapeFn(ReceivedShape)
    .Doc(R"doc(
Begins to receive a tensor from another rank, and does not wait.

shape: of the tensor, which has to be that of what is sent.
started: what LibraMessageWait puts out when the tensor has come; of no use before.
pending: what to wait for.
one_sided: the other rank learns of it by TfLibraAwaitRead, and then sends.
)doc");

REGISTER_OP("LibraCollectiveStart")
    .Attr(TF_LIBRA_MESSAGE_TYPES)
    .Attr("kind: {'all_reduce', 'reduce_scatter', 'all_gather', 'broadcast', 'reduce'}")
    .Attr("ranks: list(int) >= 1")
    .Attr("root: int >= -1 = -1")
    .Attr("reduction: {'average', 'sum'} = 'sum'")
    .Attr("tensor_name: string")
    .Input("tensor: T")
    .Output("started: T")
    .Output("pending: variant")
    .SetIsStateful()
    .SetShapeFn(CollectiveShape)
    .Doc(R"doc(
Begins what a set of ranks does together, and does not wait. Only floating point types are summed.

started: what LibraMessageWait puts out when it has ended; of no use before.
pending: what to wait for.
ranks: the set, in the order of summation, the same on each of them.
root: a rank of the set, of 'broadcast' and 'reduce'.
)doc");

// Not stateful: it has no effect of its own, and a step that does not need the message does not
// wait. So a wait in one place keeps nothing from beginning in another, however automatic control
// dependencies order what begins.
REGISTER_OP("LibraMessageWait")
    .Attr(TF_LIBRA_MESSAGE_TYPES)
    .Input("started: T")
    .Input("pending: variant")
    .Output("tensor: T")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Puts out what LibraReceiveStart or LibraCollectiveStart has begun, when it is there.
)doc");

}  // namespace tf_libra
