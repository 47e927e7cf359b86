// Which op the pass writes: one small rewriter each.

#ifndef TF_LIBRA_PASSES_REWRITER_H_
#define TF_LIBRA_PASSES_REWRITER_H_

#include <memory>
#include <string>
#include <vector>

#include "passes/plan_registry.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_libra {

// What goes into one fused node: tensors of one plan group that share dtype, device and reduction.
struct FusedGroup {
  const RegisteredPlan& plan;
  int group;                              // index in the plan
  std::vector<std::string> tensor_names;  // one per member, in plan order
  // The op of each tensor as it was traced; all have the same "T" and "reduction".
  std::vector<const tensorflow::NodeDef*> members;
};

// Writes the op and its attributes. Input i and output i of the node belong to tensor i; the pass
// itself sets name, device, inputs and the attributes of members that start with '_'.
//
// Only tensors with the same Device are fused: one that is computed elsewhere takes no others
// along.
class Rewriter {
 public:
  virtual ~Rewriter() = default;
  virtual void Write(const FusedGroup& fused, tensorflow::NodeDef* node) const = 0;
  // Where the op is to reduce what `member` reduces, which is computed on `producer_device`.
  virtual std::string Device(const tensorflow::NodeDef& member,
                             const std::string& producer_device) const {
    return member.device();
  }
  // Why the op cannot stand for `member`, which then stays as it is; empty where it can.
  virtual std::string Refusal(const tensorflow::NodeDef& member) const { return ""; }
  // Whether a LibraAllReduceDone is to run behind each node, before what reads its outputs.
  virtual bool NeedsDone() const { return false; }
};

// The rewriter for an op, null where there is none or the op is not loaded, with the reason. `op`
// is what the configuration names.
std::unique_ptr<Rewriter> MakeRewriter(const std::string& op, std::string* reason);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_REWRITER_H_
