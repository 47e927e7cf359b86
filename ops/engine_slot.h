// The one engine that this process's kernels run on. Kernels are made by TensorFlow, which has
// no way to hand them an engine, so they find it here.
#ifndef TF_LIBRA_OPS_ENGINE_SLOT_H_
#define TF_LIBRA_OPS_ENGINE_SLOT_H_

#include <memory>

#include "ops/lanes/engine.h"

namespace tf_libra {

// nullptr before the engine is started and after it was closed.
std::shared_ptr<Engine> ActiveEngine();

// Puts an engine in place (nullptr: none) and returns the one that was there.
std::shared_ptr<Engine> ExchangeActiveEngine(std::shared_ptr<Engine> engine);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_ENGINE_SLOT_H_
