#include "ops/nccl_tuner/tuner.h"

#include <algorithm>
#include <utility>

namespace tf_libra {
namespace nccl {

Tuner& Tuner::Instance() {
  static Tuner* const tuner = new Tuner;
  return *tuner;
}

void Tuner::SetPlan(std::shared_ptr<const ChannelPlan> plan) {
  std::vector<int64_t> applied(plan == nullptr ? 0 : plan->size());  // before anything changes
  const std::lock_guard<std::mutex> lock(mutex_);
  plan_.swap(plan);
  applied_.swap(applied);
  ++epoch_;
}

void Tuner::BeginStep() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++epoch_;
}

Counters Tuner::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

std::vector<int64_t> Tuner::applied() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return applied_;
}

Communicator* Tuner::NewCommunicator(int interface_version, size_t num_ranks,
                                     const NextCommunicator& next) {
  auto* const communicator = new Communicator;
  communicator->num_ranks = num_ranks;
  communicator->next = next;
  const std::lock_guard<std::mutex> lock(mutex_);
  counters_.interface_version = std::max<int64_t>(counters_.interface_version, interface_version);
  ++counters_.communicators;
  return communicator;
}

void Tuner::DeleteCommunicator(Communicator* communicator) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --counters_.communicators;
  }
  delete communicator;
}

Tuner::Answer Tuner::Ask(Communicator* communicator, Collective collective, uint64_t num_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.asked;
  int64_t* reason = nullptr;
  size_t index = ChannelPlan::kNone;
  if (collective != kAllReduce) {
    reason = &counters_.other_collective;
  } else if (plan_ == nullptr) {
    reason = &counters_.no_plan;
  } else if (communicator->num_ranks != plan_->num_ranks()) {
    reason = &counters_.other_communicator;
  } else {
    if (communicator->epoch != epoch_) {
      communicator->epoch = epoch_;
      communicator->position = 0;
    }
    index = plan_->Find(num_bytes, communicator->position);
    if (index == ChannelPlan::kNone) reason = &counters_.unknown_size;
  }
  if (reason != nullptr) {
    ++*reason;
    ++counters_.passed_over;
    return {};
  }
  ++counters_.applied;
  ++applied_[index];
  if (index != communicator->position) ++counters_.out_of_order;
  communicator->position = (index + 1) % plan_->size();
  return {(*plan_)[index].num_channels, plan_->prefer_ring()};
}

void Tuner::PassOver() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.asked;
  ++counters_.passed_over;
  ++counters_.other_communicator;
}

void Tuner::CountForwarded() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.forwarded;
}

void Tuner::CountWithoutRing() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.without_ring;
}

}  // namespace nccl
}  // namespace tf_libra
