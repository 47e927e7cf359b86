#include "passes/horovod_grouped_allreduce_rewriter.h"

#include "absl/strings/str_cat.h"
#include "ops/horovod_op.h"
#include "passes/pending_all_reduces.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tf_libra {
namespace {

bool IsSum(const tensorflow::NodeDef& member) {
  const auto reduction = member.attr().find("reduction");
  return reduction != member.attr().end() && reduction->second.s() == "sum";
}

bool IsGpu(const std::string& device) {
  tensorflow::DeviceNameUtils::ParsedName parsed;
  return tensorflow::DeviceNameUtils::ParseFullName(device, &parsed) && parsed.has_type &&
         parsed.type == tensorflow::DEVICE_GPU;
}

void WriteOp(const tensorflow::NodeDef& member, int num_tensors, tensorflow::NodeDef* node) {
  WriteHorovodOp(member.attr().at("T").type(), num_tensors, IsSum(member), node);
}

}  // namespace

void HorovodGroupedAllreduceRewriter::Write(const FusedGroup& fused,
                                            tensorflow::NodeDef* node) const {
  WriteOp(*fused.members.front(), static_cast<int>(fused.members.size()), node);
}

std::string HorovodGroupedAllreduceRewriter::Device(const tensorflow::NodeDef& member,
                                                    const std::string& producer_device) const {
  if (!IsGpu(producer_device)) return member.device();
  tensorflow::NodeDef node;
  WriteOp(member, 1, &node);
  const bool has_kernel =
      tensorflow::KernelDefAvailable(tensorflow::DeviceType(tensorflow::DEVICE_GPU), node);
  return has_kernel ? producer_device : member.device();
}

std::string HorovodGroupedAllreduceRewriter::Refusal(const tensorflow::NodeDef& member) const {
  if (HasRowsOfRanks(member)) return "ranks have rows of their own";
  const tensorflow::DataType dtype = member.attr().at("T").type();
  if (HorovodReduces(dtype)) return "";
  return absl::StrCat("Horovod does not reduce ", tensorflow::DataTypeString(dtype));
}

TF_LIBRA_REGISTER_REWRITER("HorovodGroupedAllreduce", "import horovod.tensorflow",
                           HorovodGroupedAllreduceRewriter);

}  // namespace tf_libra
