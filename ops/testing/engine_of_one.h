// An engine of a job of one rank, for what has to do with engines and not with ranks.
#ifndef TF_LIBRA_OPS_TESTING_ENGINE_OF_ONE_H_
#define TF_LIBRA_OPS_TESTING_ENGINE_OF_ONE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/lane_engine.h"
#include "ops/lanes/mesh.h"
#include "ops/lanes/socket.h"

namespace tf_libra {
namespace testing {

// Null where it cannot be had, which no test survives.
inline std::shared_ptr<LaneEngine> EngineOfOne() {
  MeshOptions options;
  Socket listener;
  options.addresses.resize(1);
  options.secret.fill(1);
  std::shared_ptr<LaneEngine> engine;
  Mesh mesh;
  if (Listen("127.0.0.1", 0, &listener, &options.addresses[0]).ok() &&
      ConnectMesh(options, std::move(listener), &mesh).ok()) {
    static_cast<void>(LaneEngine::Start(LaneEngineOptions(), std::move(mesh), &engine));
  }
  return engine;
}

// Returns the status that an engine reports to its callers after an abort.
inline Status Asked(LaneEngine* engine) {
  std::vector<std::string> all;
  return engine->AllGather("", &all);
}

}  // namespace testing
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_TESTING_ENGINE_OF_ONE_H_
