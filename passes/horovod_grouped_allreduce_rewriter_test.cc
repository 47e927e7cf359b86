// Where groups run if Horovod has a kernel for GPUs. No GPU is needed: a kernel that is registered
// will do.

#include "passes/horovod_grouped_allreduce_rewriter.h"

#include <map>
#include <string>

#include "passes/libra_rewrite.h"
#include "passes/testing.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_libra {
namespace {

using testing::kGpu;

constexpr char kCpu[] = "/job:localhost/replica:0/task:0/device:CPU:0";
constexpr char kOtherGpu[] = "/job:localhost/replica:0/task:0/device:GPU:1";

REGISTER_OP("HorovodGroupedAllreduce")
    .Input("tensors: num_tensors * T")
    .Output("sum: num_tensors * T")
    .Attr("T: type")
    .Attr("num_tensors: int")
    .Attr("reduce_op: int")
    .Attr("prescale_factor: float")
    .Attr("postscale_factor: float")
    .Attr("ignore_name_scope: bool")
    .Attr("process_set_id: int");

class NeverRun : public tensorflow::OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;
  void Compute(tensorflow::OpKernelContext*) override {}
};
REGISTER_KERNEL_BUILDER(Name("HorovodGroupedAllreduce").Device(tensorflow::DEVICE_CPU), NeverRun);
REGISTER_KERNEL_BUILDER(
    Name("HorovodGroupedAllreduce").Device(tensorflow::DEVICE_GPU).TypeConstraint<float>("T"),
    NeverRun);

// Tensors of each device, where each is computed on the device given.
std::map<std::string, std::string> Placed(const std::string& devices, bool after_backward = false) {
  testing::Graph builder;
  RegisteredPlan plan{"plan", "digest", {{{}, 1, 0}}, after_backward};
  for (size_t i = 0; i < devices.size(); ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    builder.Add("Const", "grad_" + name)
        ->set_device(devices[i] == 'c'   ? kCpu
                     : devices[i] == 'g' ? kGpu
                                         : kOtherGpu);
    builder.Reduce(name, "grad_" + name)->set_device(kCpu);
    plan.groups[0].tensor_names.push_back(name);
  }
  tensorflow::GraphDef rewritten;
  GraphReport report;
  std::string reason;
  const auto rewriter = MakeRewriter("HorovodGroupedAllreduce", &reason);
  DOCTEST_CHECK(FuseGroups(plan, *rewriter, {}, builder.def, &rewritten, &report));
  std::map<std::string, std::string> device_of;
  for (const auto& node : rewritten.node()) device_of[node.name()] = node.device();
  std::map<std::string, std::string> placed;
  for (const ReportedGroup& group : report.groups) {
    const std::string device = device_of.at(group.node);
    DOCTEST_CHECK_EQ(device_of.at(group.node + "_done"), device);
    for (const ReportedTensor& tensor : group.tensors) placed[device] += tensor.name;
  }
  return placed;
}

DOCTEST_TEST_CASE("GroupsAreSplitByDevice") {
  using Expected = std::map<std::string, std::string>;
  DOCTEST_CHECK(Placed("ggg") == (Expected{{kGpu, "abc"}}));
  DOCTEST_CHECK(Placed("gcg") == (Expected{{kGpu, "ac"}, {kCpu, "b"}}));
  DOCTEST_CHECK(Placed("ccg") == (Expected{{kCpu, "ab"}, {kGpu, "c"}}));
  DOCTEST_CHECK(Placed("ccc") == (Expected{{kCpu, "abc"}}));
  DOCTEST_CHECK(Placed("gog") == (Expected{{kGpu, "ac"}, {kOtherGpu, "b"}}));
}

DOCTEST_TEST_CASE("WhatHorovodHasNoKernelForStaysWhereItIs") {
  const HorovodGroupedAllreduceRewriter rewriter;
  testing::Graph builder;
  tensorflow::NodeDef* node = builder.Reduce("a", "grad");
  node->set_device(kCpu);
  DOCTEST_CHECK_EQ(rewriter.Device(*node, kGpu), kGpu);
  (*node->mutable_attr())["T"].set_type(tensorflow::DT_DOUBLE);
  DOCTEST_CHECK_EQ(rewriter.Device(*node, kGpu), kCpu);
}

}  // namespace
}  // namespace tf_libra
