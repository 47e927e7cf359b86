#include "ops/engine_slot.h"

#include <mutex>
#include <utility>

namespace tf_libra {
namespace {

struct Slot {
  std::mutex mutex;
  std::shared_ptr<Engine> engine;
};

// Never destroyed: kernels may outlive static destruction when the interpreter exits in mid-step.
Slot& TheSlot() {
  static Slot* const slot = new Slot;
  return *slot;
}

}  // namespace

std::shared_ptr<Engine> ActiveEngine() {
  Slot& slot = TheSlot();
  const std::lock_guard<std::mutex> lock(slot.mutex);
  return slot.engine;
}

std::shared_ptr<Engine> ExchangeActiveEngine(std::shared_ptr<Engine> engine) {
  Slot& slot = TheSlot();
  const std::lock_guard<std::mutex> lock(slot.mutex);
  return std::exchange(slot.engine, std::move(engine));
}

}  // namespace tf_libra
