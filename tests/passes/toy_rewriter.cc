// A rewriter from outside: its op and itself, in a library of its own.

#include "passes/rewriter.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"

namespace {

REGISTER_OP("ToyAllReduce")
    .Input("tensors: N * float")
    .Output("reduced: N * float")
    .Attr("N: int >= 1")
    .SetIsStateful();

class ToyRewriter : public tf_libra::Rewriter {
 public:
  void Write(const tf_libra::FusedGroup& fused, tensorflow::NodeDef* node) const override {
    node->set_op("ToyAllReduce");
    tensorflow::AddNodeAttr("N", static_cast<int>(fused.members.size()), node);
  }
  std::string Refusal(const tensorflow::NodeDef& member) const override {
    const bool is_float = member.attr().at("T").type() == tensorflow::DT_FLOAT;
    return is_float ? "" : "a toy reduces floats alone";
  }
  bool NeedsDone() const override { return true; }
};

TF_LIBRA_REGISTER_REWRITER("ToyAllReduce", "", ToyRewriter);

}  // namespace
