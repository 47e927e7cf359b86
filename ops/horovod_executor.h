// Execution of LibraAllReduce by Horovod, for jobs whose ranks have no lanes: all-reduces without
// a plan, and those that Horovod's own op cannot replace in a graph.
#ifndef TF_LIBRA_OPS_HOROVOD_EXECUTOR_H_
#define TF_LIBRA_OPS_HOROVOD_EXECUTOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/status.h"
#include "ops/lanes/telemetry.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_libra {

// Returns whether this process's all-reduces are Horovod's, and whether its job has failed.
class HorovodJob {
 public:
  static HorovodJob& Global();

  void Start(int rank, int world_size);
  void Stop();
  // Every later all-reduce ends with the first reason.
  void Fail(const Status& reason);
  // The step number in later messages.
  void SetStep(int64_t step);
  bool is_running() const;
  int rank() const;
  int world_size() const;
  int64_t step() const;
  Status status() const;

  // Runs `start` when nothing of that name is under way, in the order of these calls: Horovod
  // matches all-reduces across ranks by their names. `start` ends with a call of `Leave`.
  void Enter(const std::string& name, std::function<void()> start);
  void Leave(const std::string& name);

 private:
  mutable std::mutex mutex_;
  bool is_running_ = false;
  int rank_ = 0;
  int world_size_ = 1;
  int64_t step_ = -1;
  Status status_;
  std::map<std::string, std::deque<std::function<void()>>> waiting_;  // by what is under way
};

// Horovod's kernel for one LibraAllReduce, made when it is first called.
class HorovodAllReduce {
 public:
  explicit HorovodAllReduce(std::shared_ptr<const OperationInfo> operation)
      : operation_(std::move(operation)) {}

  // As the kernel's ComputeAsync. The first inputs and the outputs of `context` are one for one.
  void Compute(tensorflow::OpKernelContext* context, std::function<void()> done);

  // Sums one tensor of a kernel that has other inputs and outputs. `done` gets an error or the sum.
  using SumDone = std::function<void(const absl::Status&, const tensorflow::Tensor&)>;
  void Sum(tensorflow::OpKernelContext* context, const tensorflow::Tensor& tensor, SumDone done);

 private:
  struct Call;
  using CallDone = std::function<void(const absl::Status&, Call*)>;

  absl::Status MakeKernel(tensorflow::OpKernelContext* context, tensorflow::DataType type,
                          int num_tensors);
  // Reduces `inputs` when no other all-reduce of this name is under way.
  void Reduce(tensorflow::OpKernelContext* context, std::vector<tensorflow::Tensor> inputs,
              CallDone done);
  void Run(tensorflow::OpKernelContext* context, std::vector<tensorflow::Tensor> inputs,
           CallDone done);
  static std::shared_ptr<Call> CallOf(tensorflow::OpKernelContext* outer,
                                      std::vector<tensorflow::Tensor> inputs,
                                      tensorflow::OpKernel* kernel);
  static absl::Status TakeOutputs(Call* call, tensorflow::OpKernelContext* outer);

  const std::shared_ptr<const OperationInfo> operation_;
  std::mutex mutex_;
  std::unique_ptr<tensorflow::OpKernel> kernel_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_HOROVOD_EXECUTOR_H_
