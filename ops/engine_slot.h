// The engine of this process. TensorFlow constructs kernels and cannot pass them an engine, so
// kernels look it up here.
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
