#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/branch_votes.h"
#include "ops/engine_slot.h"
#include "ops/horovod_executor.h"
#include "ops/kernels.h"
#include "ops/lanes/engine.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {
namespace {

constexpr char kCheckBranch[] = "LibraCheckBranch";

// Buffers of one execution; alive until its last message has been sent.
struct Votes {
  int32_t mine = 0;
  std::vector<int32_t> all;  // [rank]
};

// Lets every rank know what all have, over messages of the engine. `done` may be called by any
// thread.
void Gather(const std::shared_ptr<Engine>& engine, const std::string& name, int64_t step,
            const std::shared_ptr<Votes>& votes, std::function<void(const Status&)> done) {
  CollectiveRequest request;
  request.kind = CollectiveKind::kAllGather;
  request.ranks.resize(engine->world_size());
  std::iota(request.ranks.begin(), request.ranks.end(), 0);
  request.name = name;
  request.content = absl::StrCat("a condition in step ", step);
  request.element_size = sizeof(int32_t);
  request.input = reinterpret_cast<const char*>(&votes->mine);
  request.output = reinterpret_cast<char*>(votes->all.data());
  request.num_bytes = sizeof(int32_t);
  request.done = [votes, done = std::move(done)](const Status& status) { done(status); };
  engine->Run(std::move(request));
}

class LibraCheckBranchKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit LibraCheckBranchKernel(tensorflow::OpKernelConstruction* context)
      : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("condition", &check_.condition));
    OP_REQUIRES_OK(context, context->GetAttr("tensor_name", &check_.tensor));
    OP_REQUIRES_OK(context, context->GetAttr("function", &check_.function));
    OP_REQUIRES_OK(context, context->GetAttr("key", &key_));
    OP_REQUIRES_OK(context, context->GetAttr("is_loop", &check_.is_loop));
    check_.is_index = context->input_type(0) == tensorflow::DT_INT32;
    auto operation = std::make_shared<OperationInfo>();
    operation->function = check_.function;
    operation->tensor_names = {absl::StrCat("condition/", key_)};
    operation->reduction = Reduction::kSum;
    operation->ComputeDigest();
    by_horovod_ = std::make_unique<HorovodAllReduce>(operation);
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    StartOrFail(kCheckBranch, context, done, [&] { HandOver(context, done); });
  }

  bool IsExpensive() override { return false; }

 private:
  void HandOver(tensorflow::OpKernelContext* context, const DoneCallback& done) {
    OP_REQUIRES_ASYNC(
        context, tensorflow::TensorShapeUtils::IsScalar(context->input(0).shape()),
        absl::InvalidArgumentError(absl::StrCat(kCheckBranch, ": the predicate of ",
                                                check_.condition, " must be a scalar, got shape ",
                                                context->input(0).shape().DebugString())),
        done);
    const int32_t mine = check_.is_index ? context->input(0).scalar<int32_t>()()
                                         : static_cast<int32_t>(context->input(0).scalar<bool>()());
    if (ActiveEngine() == nullptr && HorovodJob::Global().is_running()) {
      CheckByHorovod(context, mine, done);
    } else {
      CheckByMessages(context, mine, done);
    }
  }

  void CheckByMessages(tensorflow::OpKernelContext* context, int32_t mine,
                       const DoneCallback& done) {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK_ASYNC(context, FindEngine(kCheckBranch, &engine), done);
    auto votes = std::make_shared<Votes>();
    votes->mine = mine;
    votes->all.resize(engine->world_size());
    const int64_t turn = context->frame_iter().iter_id;
    const int64_t step = engine->step();
    const std::string name = absl::StrCat("condition/", key_, "/", turn);
    const int rank = engine->rank();
    Gather(engine, name, step, votes, [=](const Status& status) {
      if (!status.ok()) return End(context, ToTensorFlow(kCheckBranch, status), done);
      absl::Status difference;
      std::shared_ptr<Votes> known;
      try {
        difference = Compare(votes->all, rank, step, turn);
        if (!difference.ok()) known = std::make_shared<Votes>(*votes);
      } catch (...) {
        return End(context, CannotStart(kCheckBranch), done);
      }
      if (difference.ok()) return End(context, difference, done);
      // This rank fails now, and ends the engine: not before every other one knows why.
      Gather(engine, name + "/known", step, known,
             [=](const Status&) { End(context, difference, done); });
    });
  }

  void CheckByHorovod(tensorflow::OpKernelContext* context, int32_t mine,
                      const DoneCallback& done) {
    const HorovodJob& job = HorovodJob::Global();
    const int rank = job.rank();
    const int64_t turn = context->frame_iter().iter_id, step = job.step();
    // A sum in which every rank has a place of its own.
    tensorflow::Tensor votes(tensorflow::DT_FLOAT, tensorflow::TensorShape({job.world_size()}));
    votes.flat<float>().setZero();
    votes.flat<float>()(rank) = static_cast<float>(mine);
    by_horovod_->Sum(context, votes,
                     [=](const absl::Status& status, const tensorflow::Tensor& sums) {
                       if (!status.ok()) return End(context, status, done);
                       absl::Status difference;
                       try {
                         std::vector<int32_t> all(sums.NumElements());
                         for (size_t i = 0; i < all.size(); ++i) {
                           all[i] = static_cast<int32_t>(sums.flat<float>()(i));
                         }
                         difference = Compare(all, rank, step, turn);
                       } catch (...) {
                         difference = CannotStart(kCheckBranch);
                       }
                       End(context, difference, done);
                     });
  }

  // FailedPrecondition: a rank's vote differs.
  absl::Status Compare(const std::vector<int32_t>& votes, int rank, int64_t step,
                       int64_t turn) const {
    const std::string difference = DescribeVotes(check_, votes, rank, step, turn);
    if (difference.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(kCheckBranch, ": ", difference));
  }

  static void End(tensorflow::OpKernelContext* context, const absl::Status& status,
                  const DoneCallback& done) {
    if (status.ok()) {
      context->set_output(0, context->input(0));
    } else {
      context->SetStatus(status);
    }
    done();
  }

  BranchOfRanks check_;
  std::string key_;
  std::unique_ptr<HorovodAllReduce> by_horovod_;
};

REGISTER_KERNEL_BUILDER(Name("LibraCheckBranch").Device(tensorflow::DEVICE_CPU),
                        LibraCheckBranchKernel);

}  // namespace
}  // namespace tf_libra
