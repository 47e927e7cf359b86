// Ops of updates at the owner (passes/update_sharding.h): each rank updates the parts of variables
// that it owns (ops/lanes/owned_parts.h).

#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_libra {
namespace {

using tensorflow::shape_inference::InferenceContext;

absl::Status OneVector(InferenceContext* context) {
  context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

absl::Status NoOutputs(InferenceContext*) { return absl::OkStatus(); }

}  // namespace

REGISTER_OP("LibraOwnedPart")
    .Attr("T: type")
    .Attr("num_elements: int >= 0")
    .Input("tensor: T")
    .Output("part: T")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->UnknownShape());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Outputs the part of a tensor of `num_elements` that this rank owns, as a vector.

tensor: one element is output as a scalar, on every rank, if it is not the whole tensor.
)doc");

REGISTER_OP("LibraReadOwned")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("before_steps: bool = false")
    .Input("resource: resource")
    .Output("part: dtype")
    .SetIsStateful()
    .SetShapeFn(OneVector)
    .Doc(R"doc(
Outputs the part of a slot variable that this rank owns.

From then on the variable holds nothing else: ReadVariableOp fails until LibraGatherOwned has
gathered it.

before_steps: outputs the part as it was before all steps that are not complete, and leaves the
  variable as it is.
)doc");

REGISTER_OP("LibraAssignOwned")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("mode: {'assign', 'add', 'subtract'}")
    .Attr("is_slot: bool")
    .Input("resource: resource")
    .Input("value: dtype")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Changes the part of a variable that this rank owns.

is_slot: whether the variable holds that part alone, as after LibraReadOwned.
value: as many elements as the part, or one.
)doc");

REGISTER_OP("LibraUpdateOwned")
    .Attr("N: int >= 1")
    .Attr("M: int >= 0")
    .Attr("is_slot: list(bool)")
    .Attr("program: list(int)")
    .Input("resources: N * resource")
    .Input("values: M * float")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Changes the parts of variables that this rank owns by an element-wise program, in one pass.

All variables have as many elements in their parts, and values have as many or one.

is_slot: by variable, whether it holds that part alone, as after LibraReadOwned.
program: triples of an operation and its operands (ops/update_program.h).
)doc");

REGISTER_OP("LibraReleaseOwned")
    .Input("resource: resource")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Makes a variable that holds the owned part alone assignable: the rest becomes zeros.
)doc");

REGISTER_OP("LibraGatherOwned")
    .Attr("N: int >= 1")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("names: list(string)")
    .Attr("num_threads: int >= 1 = 1")
    .Attr("first_lane: int >= 0 = 0")
    .Attr("plan: string = ''")
    .Attr("function: string = ''")
    .Attr("in_background: bool = false")
    .Attr("of_step: bool = false")
    .Attr("ends_step: bool = false")
    .Input("resources: N * resource")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Gathers the parts of variables from the ranks that own them. All variables are whole afterwards. If
it fails, they keep their values.

names: a name for each variable, the same on every rank.
in_background: whether the op ends when the gather has begun. Until the gather ends, the variables
  stay locked: whatever reads or writes them waits.
of_step: whether it gathers what a step has updated, and what is undone if the step fails.
ends_step: whether it is the last gather of its step, after all its updates.
)doc");

REGISTER_OP("LibraAwaitGather")
    .Attr("N: int >= 1")
    .Input("resources: N * resource")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Ends when none of the variables is gathered in the background, without blocking a thread.
)doc");

REGISTER_OP("LibraSumPartials")
    .Attr("Ts: list({half, bfloat16, float, double, bool}) >= 1")
    .Attr("dims: list(int)")
    .Attr("name_of_all: string")
    .Attr("plan: string = ''")
    .Attr("function: string = ''")
    .Input("partials: Ts")
    .Output("sums: Ts")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      std::vector<int> dims;
      TF_RETURN_IF_ERROR(context->GetAttr("dims", &dims));
      for (int i = 0; i < context->num_outputs() && i < static_cast<int>(dims.size()); ++i) {
        const std::vector<tensorflow::shape_inference::DimensionHandle> ones(dims[i],
                                                                             context->MakeDim(1));
        context->set_output(i, context->MakeShape(ones));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Adds each number over all ranks, in the order of ranks: the same bits on every rank.

partials: numbers, of one element each. Of type bool, the result is true if all are.
sums: one element each, with as many dimensions as `dims` says.
name_of_all: a name of the exchange, the same on every rank.
)doc");

}  // namespace tf_libra
