// Shutdown of an engine within a deadline: callbacks of its threads may never return.
#ifndef TF_LIBRA_OPS_LANES_ENGINE_SHUTDOWN_H_
#define TF_LIBRA_OPS_LANES_ENGINE_SHUTDOWN_H_

#include <memory>
#include <string>

#include "ops/lanes/engine.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// Aborts the engine, once what it has sent has arrived, and frees it; peers receive `why`. If
// another thread still uses the engine, the engine ends when that thread releases it.
// DeadlineExceeded if a `done` does not return for the engine's timeout: its threads stay behind.
Status EndWithin(std::shared_ptr<Engine> engine, const std::string& why);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ENGINE_SHUTDOWN_H_
