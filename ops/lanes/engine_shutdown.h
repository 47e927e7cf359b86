// The end of an engine, in time: what its threads have called may never return.
#ifndef TF_LIBRA_OPS_LANES_ENGINE_SHUTDOWN_H_
#define TF_LIBRA_OPS_LANES_ENGINE_SHUTDOWN_H_

#include <memory>
#include <string>

#include "ops/lanes/engine.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// Aborts the engine, once what it has sent is there, and lets go of it; peers are told `why`. Where
// another thread still uses it, it ends with that; where a `done` does not return for the engine's
// timeout, DeadlineExceeded: its threads stay behind.
Status EndWithin(std::shared_ptr<Engine> engine, const std::string& why);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ENGINE_SHUTDOWN_H_
