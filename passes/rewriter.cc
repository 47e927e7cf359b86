#include "passes/rewriter.h"

#include "absl/strings/str_cat.h"
#include "passes/horovod_grouped_allreduce_rewriter.h"
#include "passes/libra_all_reduce_rewriter.h"
#include "tensorflow/core/framework/op.h"

namespace tf_libra {

std::unique_ptr<Rewriter> MakeRewriter(const std::string& op, std::string* reason) {
  if (op == "LibraAllReduce") return std::make_unique<LibraAllReduceRewriter>();
  if (op != "HorovodGroupedAllreduce") {
    *reason = absl::StrCat("no rewriter writes op '", op,
                           "', only LibraAllReduce and HorovodGroupedAllreduce");
    return nullptr;
  }
  const tensorflow::OpRegistrationData* unused = nullptr;
  if (!tensorflow::OpRegistry::Global()->LookUp(op, &unused).ok()) {
    *reason = absl::StrCat("op '", op, "' is not loaded: import horovod.tensorflow");
    return nullptr;
  }
  return std::make_unique<HorovodGroupedAllreduceRewriter>();
}

}  // namespace tf_libra
