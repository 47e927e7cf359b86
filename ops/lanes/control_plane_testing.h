// Helpers for tests of the control plane: planes of all ranks, and a rank that the test plays.
#ifndef TF_LIBRA_OPS_LANES_CONTROL_PLANE_TESTING_H_
#define TF_LIBRA_OPS_LANES_CONTROL_PLANE_TESTING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/control_plane.h"
#include "ops/lanes/testing.h"

namespace tf_libra {
namespace testing {

// Deadline of a collective in which all ranks that take part answer within half of the time.
constexpr double kWaitSeconds = 4;

inline std::unique_ptr<ControlPlane> PlaneOf(Mesh* mesh, ControlOptions options = {}) {
  auto plane = std::make_unique<ControlPlane>(std::move(mesh->tree), std::move(mesh->control),
                                              std::move(options));
  CHECK_EQ(plane->Start(), testing::IsOk());
  return plane;
}

// The control planes of all ranks, [rank].
inline std::vector<std::unique_ptr<ControlPlane>> Planes(int world_size,
                                                         const ControlOptions& options = {}) {
  std::vector<Mesh> meshes = testing::ConnectAll(world_size, 1);
  std::vector<std::unique_ptr<ControlPlane>> planes;
  for (Mesh& mesh : meshes) {
    planes.push_back(PlaneOf(&mesh, options));
  }
  return planes;
}

// Rank 0's control plane, and the test's ends of its connections, [rank].
struct ScriptedPeer {
  std::vector<Mesh> meshes;
  std::unique_ptr<ControlPlane> plane;

  explicit ScriptedPeer(int world_size) : meshes(testing::ConnectAll(world_size, 1)) {
    plane = PlaneOf(&meshes[0]);
  }

  Socket& End(int rank) { return meshes[rank].control[0]; }

  void Send(int rank, const std::string& bytes) {
    CHECK_EQ(SendAll(End(rank), bytes.data(), bytes.size(), After(kGenerousSeconds)),
             testing::IsOk());
  }

  Status AllGather(double seconds = kGenerousSeconds, const std::string& mine = "") {
    std::vector<std::string> all;
    return plane->AllGather(mine, seconds, &all);
  }
};

constexpr uint32_t kData = 1, kAbort = 2, kGone = 3, kProbe = 4, kAlive = 5;
constexpr int kAll = -1;

inline std::string Header(uint32_t kind, uint32_t num_bytes, int origin = 1, int target = kAll) {
  const uint32_t header[5] = {0x4442494cu, kind, num_bytes, static_cast<uint32_t>(origin),
                              static_cast<uint32_t>(target)};
  return std::string(reinterpret_cast<const char*>(header), sizeof(header));
}

inline std::string Message(uint32_t kind, const std::string& text, int origin = 1) {
  return Header(kind, static_cast<uint32_t>(text.size()), origin) + text;
}

inline std::string Content(int rank, int round) {
  const size_t sizes[] = {0, 1, 11, 12, 13, 4096, 70001, 3 << 20, 0, 5 << 20};
  std::string content(sizes[(rank * 3 + round) % 10], static_cast<char>('a' + rank));
  for (size_t i = 0; i < content.size(); i += 97) content[i] = static_cast<char>(i / 97 + round);
  return content;
}

}  // namespace testing
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_CONTROL_PLANE_TESTING_H_
