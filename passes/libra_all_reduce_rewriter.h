#ifndef TF_LIBRA_PASSES_LIBRA_ALL_REDUCE_REWRITER_H_
#define TF_LIBRA_PASSES_LIBRA_ALL_REDUCE_REWRITER_H_

#include "passes/rewriter.h"

namespace tf_libra {

// Writes a LibraAllReduce of several tensors.
class LibraAllReduceRewriter : public Rewriter {
 public:
  void Write(const FusedGroup& fused, tensorflow::NodeDef* node) const override;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_LIBRA_ALL_REDUCE_REWRITER_H_
