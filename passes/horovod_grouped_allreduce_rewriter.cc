#include "passes/horovod_grouped_allreduce_rewriter.h"

#include <algorithm>
#include <vector>

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

// The one GPU that all of `devices` name, else nothing.
std::string CommonGpu(const std::vector<std::string>& devices) {
  if (devices.empty() || std::count(devices.begin(), devices.end(), devices[0]) !=
                             static_cast<std::ptrdiff_t>(devices.size())) {
    return "";
  }
  tensorflow::DeviceNameUtils::ParsedName parsed;
  const bool is_gpu = tensorflow::DeviceNameUtils::ParseFullName(devices[0], &parsed) &&
                      parsed.has_type && parsed.type == tensorflow::DEVICE_GPU;
  return is_gpu ? devices[0] : "";
}

}  // namespace

void HorovodGroupedAllreduceRewriter::Write(const FusedGroup& fused,
                                            tensorflow::NodeDef* node) const {
  const tensorflow::NodeDef& first = *fused.members.front();
  node->set_op("HorovodGroupedAllreduce");
  (*node->mutable_attr())["T"] = first.attr().at("T");
  tensorflow::AddNodeAttr("num_tensors", static_cast<int>(fused.members.size()), node);
  tensorflow::AddNodeAttr("reduce_op", IsSum(first) ? kSum : kAverage, node);
  tensorflow::AddNodeAttr("prescale_factor", 1.0f, node);
  tensorflow::AddNodeAttr("postscale_factor", 1.0f, node);
  tensorflow::AddNodeAttr("ignore_name_scope", false, node);
  tensorflow::AddNodeAttr("process_set_id", 0, node);
  tensorflow::AddNodeAttr("_tf_libra_tensor_names", fused.tensor_names, node);
  tensorflow::AddNodeAttr("_tf_libra_group", fused.group, node);
  tensorflow::AddNodeAttr("_tf_libra_num_threads", fused.plan.groups[fused.group].num_threads,
                          node);
  const std::string gpu = CommonGpu(fused.producer_devices);
  if (gpu.empty()) return;
  if (tensorflow::KernelDefAvailable(tensorflow::DeviceType(tensorflow::DEVICE_GPU), *node)) {
    node->set_device(gpu);
  }
}

std::string HorovodGroupedAllreduceRewriter::Refusal(const tensorflow::NodeDef& member) const {
  const tensorflow::DataType dtype = member.attr().at("T").type();
  if (dtype != tensorflow::DT_BFLOAT16) return "";
  return absl::StrCat("Horovod does not reduce ", tensorflow::DataTypeString(dtype));
}

}  // namespace tf_libra
