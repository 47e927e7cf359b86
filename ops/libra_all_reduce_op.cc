#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_libra {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status SameShapes(InferenceContext* context) {
  bool scatter = false;
  int num_tensors = 0;
  TF_RETURN_IF_ERROR(context->GetAttr("scatter", &scatter));
  TF_RETURN_IF_ERROR(context->GetAttr("N", &num_tensors));
  const bool has_ends = context->num_inputs() > num_tensors;
  for (int i = 0; i < num_tensors; ++i) {
    ShapeHandle shape = context->input(i);
    if (scatter) shape = context->Vector(InferenceContext::kUnknownDim);
    if (has_ends && context->RankKnown(shape)) {
      TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, context->UnknownDim(), &shape));
    }
    context->set_output(i, shape);
  }
  return absl::OkStatus();
}

}  // namespace

// What an all-reduce is, started apart or not.
#define TF_LIBRA_ALL_REDUCE_OP(name)                        \
  REGISTER_OP(name)                                         \
      .Attr("N: int >= 1")                                  \
      .Attr("T: {half, bfloat16, float, double}")           \
      .Attr("tensor_names: list(string)")                   \
      .Attr("num_threads: int >= 1 = 1")                    \
      .Attr("group: int >= -1 = -1")                        \
      .Attr("stream: int >= 0 = 0")                         \
      .Attr("first_lane: int >= 0 = 0")                     \
      .Attr("reduction: {'average', 'sum'} = 'average'")    \
      .Attr("wire_dtype: {'', 'float16', 'bfloat16'} = ''") \
      .Attr("error_feedback: bool = false")                 \
      .Attr("plan: string = ''")                            \
      .Attr("function: string = ''")                        \
      .Attr("part_starts: list(int) = []")                  \
      .Attr("scatter: bool = false")                        \
      .Attr("E: int >= 0 = 0")                              \
      .Input("tensors: N * T")                              \
      .Input("ends: E * int32")                             \
      .SetIsStateful()

TF_LIBRA_ALL_REDUCE_OP("LibraAllReduce").Output("reduced: N * T").SetShapeFn(SameShapes).Doc(R"doc(
Averages (or sums) each tensor over all ranks, as one all-reduce of all of them together.

tensors: this rank's tensors, of one dtype, in backward order.
ends: for one tensor, of which each rank has rows of its own: where those of each rank end among all
  rows, which are put out in rank order, and divided by the number of ranks for an average. A
  second one, a number, leaves them undivided (0), or says that each rank has all rows (1), which
  are reduced as without ends.
reduced: same shapes but for `ends`, the same bits on every rank.
tensor_names: a name for each tensor, the same on every rank.
num_threads: how many lanes the all-reduce may use.
group: index of the tensor group in the plan; -1 where no plan was applied.
stream: all-reduces of one stream run one after the other.
first_lane: the first of its stream's lanes. All-reduces that share a lane run one after the other.
wire_dtype: the dtype to which ranks round float32 tensors on their way; empty for the tensors' own.
error_feedback: whether what rounding to wire_dtype loses is added to the next all-reduce of the same
  tensor; no effect without wire_dtype.
plan: id of the plan that put these tensors together.
function: the training function it belongs to; those of another one are never averaged with its.
part_starts: of each tensor that is a part, put out by LibraCut, the byte where it begins, and -1 of
  others; a part is reduced in place. Empty where none is one.
scatter: whether each rank receives, as vectors, only the parts of the results that it owns.
)doc");

TF_LIBRA_ALL_REDUCE_OP("LibraAllReduceStart")
    .Output("started: N * T")
    .Output("pending: variant")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(context->num_outputs() - 1, context->Scalar());
      return SameShapes(context);
    })
    .Doc(R"doc(
Hands tensors over as LibraAllReduce does, and does not wait: the next may be handed over before.

started: what LibraAllReduceWait puts out when the all-reduce has ended; of no use before.
pending: what to wait for.
)doc");

REGISTER_OP("LibraAllReduceWait")
    .Attr("N: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Input("started: N * T")
    .Input("pending: variant")
    .Output("reduced: N * T")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Puts out what LibraAllReduceStart has handed over, when it is reduced.
)doc");

REGISTER_OP("LibraCut")
    .Attr("K: int >= 2")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("starts: list(int) >= 2")
    .Input("tensor: T")
    .Output("whole: T")
    .Output("parts: K * T")
    .SetIsStateful()  // two of one tensor are two: each is reduced in place
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      for (int i = 1; i < context->num_outputs(); ++i) {
        context->set_output(i, context->Vector(InferenceContext::kUnknownDim));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Puts out a tensor, and parts of it that share its memory, which is nobody else's.

starts: the byte where each part begins, ascending from 0; it ends where the next one does.
whole: what becomes of the tensor as its parts are written.
parts: each as a vector.
)doc");

REGISTER_OP("LibraJoin")
    .Attr("K: int >= 2")
    .Attr("T: {half, bfloat16, float, double}")
    .Input("whole: T")
    .Input("parts: K * T")
    .Output("joined: T")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Puts out what LibraCut has cut when something was made of all of its parts.

parts: where one is not in its place in the whole, it is copied there.
)doc");

}  // namespace tf_libra
