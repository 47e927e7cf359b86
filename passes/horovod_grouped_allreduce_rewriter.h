// Rewriter to Horovod's HorovodGroupedAllreduce.

#ifndef TF_LIBRA_PASSES_HOROVOD_GROUPED_ALLREDUCE_REWRITER_H_
#define TF_LIBRA_PASSES_HOROVOD_GROUPED_ALLREDUCE_REWRITER_H_

#include <string>

#include "passes/rewriter.h"

namespace tf_libra {

// Writes Horovod's HorovodGroupedAllreduce (0.28.1) of several tensors, for users whose Horovod
// runs on MPI or NCCL. Horovod matches it across ranks by the node's name, which the plan
// determines and which is therefore equal on all ranks.
class HorovodGroupedAllreduceRewriter : public Rewriter {
 public:
  void Write(const FusedGroup& fused, tensorflow::NodeDef* node) const override;
  // Returns the GPU on which the gradient is computed, if Horovod has a kernel for it there.
  std::string Device(const tensorflow::NodeDef& member,
                     const std::string& producer_device) const override;
  std::string Refusal(const tensorflow::NodeDef& member) const override;
  // Horovod's op leaves no record of its end.
  bool NeedsDone() const override { return true; }
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_HOROVOD_GROUPED_ALLREDUCE_REWRITER_H_
