#include "passes/horovod_grouped_allreduce_rewriter.h"

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tf_libra {
namespace {

// horovod/common/message.h, ReduceOp.
constexpr int kAverage = 0;
constexpr int kSum = 1;

bool IsSum(const tensorflow::NodeDef& member) {
  const auto reduction = member.attr().find("reduction");
  return reduction != member.attr().end() && reduction->second.s() == "sum";
}

bool IsGpu(const std::string& device) {
  tensorflow::DeviceNameUtils::ParsedName parsed;
  return tensorflow::DeviceNameUtils::ParseFullName(device, &parsed) && parsed.has_type &&
         parsed.type == tensorflow::DEVICE_GPU;
}

// Those attributes that say what is reduced, and how.
void WriteOp(const tensorflow::NodeDef& member, int num_tensors, tensorflow::NodeDef* node) {
  node->set_op("HorovodGroupedAllreduce");
  (*node->mutable_attr())["T"] = member.attr().at("T");
  tensorflow::AddNodeAttr("num_tensors", num_tensors, node);
  tensorflow::AddNodeAttr("reduce_op", IsSum(member) ? kSum : kAverage, node);
  tensorflow::AddNodeAttr("prescale_factor", 1.0f, node);
  tensorflow::AddNodeAttr("postscale_factor", 1.0f, node);
  tensorflow::AddNodeAttr("ignore_name_scope", false, node);
  tensorflow::AddNodeAttr("process_set_id", 0, node);
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
  const tensorflow::DataType dtype = member.attr().at("T").type();
  if (dtype != tensorflow::DT_BFLOAT16) return "";
  return absl::StrCat("Horovod does not reduce ", tensorflow::DataTypeString(dtype));
}

TF_LIBRA_REGISTER_REWRITER("HorovodGroupedAllreduce", "import horovod.tensorflow",
                           HorovodGroupedAllreduceRewriter);

}  // namespace tf_libra
