#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_libra {

REGISTER_OP("LibraAllReduce")
    .Input("tensors: N * T")
    .Output("reduced: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("tensor_names: list(string)")
    .Attr("num_threads: int >= 1 = 1")
    .Attr("group: int >= -1 = -1")
    .Attr("stream: int >= 0 = 0")
    .Attr("reduction: {'average', 'sum'} = 'average'")
    .Attr("plan: string = ''")
    .Attr("function: string = ''")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Averages (or sums) each tensor over all ranks, as one all-reduce of all of them together.

tensors: this rank's tensors, of one dtype, in backward order.
reduced: same shapes, the same bits on every rank.
tensor_names: a name for each tensor, the same on every rank.
num_threads: how many lanes the all-reduce may use.
group: index of the tensor group in the plan; -1 where no plan was applied.
stream: all-reduces of one stream run one after the other.
plan: id of the plan that put these tensors together.
function: the training function it belongs to; those of another one are never averaged with its.
)doc");

}  // namespace tf_libra
