#include "passes/rewriter.h"

#include "passes/libra_all_reduce_rewriter.h"

namespace tf_libra {

std::unique_ptr<Rewriter> MakeRewriter(const std::string& op) {
  if (op == "LibraAllReduce") return std::make_unique<LibraAllReduceRewriter>();
  return nullptr;
}

}  // namespace tf_libra
