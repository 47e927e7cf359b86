// Rewriter to a LibraAllReduce of several tensors.

#ifndef TF_LIBRA_PASSES_LIBRA_ALL_REDUCE_REWRITER_H_
#define TF_LIBRA_PASSES_LIBRA_ALL_REDUCE_REWRITER_H_

#include "passes/rewriter.h"

namespace tf_libra {

// Writes a LibraAllReduce of several tensors. Each stream of a plan has its own lanes, numbered
// after those of earlier streams; their number is the largest thread count of its groups.
class LibraAllReduceRewriter : public Rewriter {
 public:
  void Write(const FusedGroup& fused, tensorflow::NodeDef* node) const override;
  bool TakesParts() const override { return true; }
  bool SplitsStartDone() const override { return true; }
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_LIBRA_ALL_REDUCE_REWRITER_H_
