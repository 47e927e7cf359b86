#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_libra {

REGISTER_OP("LibraCheckBranch")
    .Attr("T: {bool, int32}")
    .Attr("condition: string")
    .Attr("tensor_name: string")
    .Attr("function: string")
    .Attr("key: string")
    .Attr("is_loop: bool = false")
    .Input("predicate: T")
    .Output("checked: T")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->input(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Forwards a predicate that is equal on all ranks, and fails on all of them if it differs.

predicate: decides whether, or how often, an all-reduce runs.
condition: the conditional or loop that follows the predicate, for messages.
tensor_name: a tensor whose all-reduce depends on it.
function: the training function that the tensor belongs to.
key: the same on every rank, of no other check in the graph.
is_loop: whether the predicate lets a loop go on.
)doc");

}  // namespace tf_libra
