// One rank of many, as light as a rank can be: it listens, connects to all others, agrees with them
// and all-reduces. Started by benchmarks/scaling.py, which defines what it prints.
#include <dirent.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/lanes.h"
#include "ops/lanes/lane_engine.h"

namespace {

int NumDescriptors() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count - 3;  // ".", ".." and the folder's own
}

long ResidentBytes() {
  long pages = 0, resident = 0;
  FILE* const file = std::fopen("/proc/self/statm", "r");
  if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
  std::fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

// Whether every rank's ones add up.
bool AllReduces(tf_libra::Engine* engine) {
  std::vector<float> ones(256, 1.0f);
  AllReduce(engine, ones.data(), ones.size(), 1);
  for (const float one : ones) {
    if (one != static_cast<float>(engine->world_size())) return false;
  }
  return true;
}

}  // namespace

int main(int, char** argv) {
  const int rank = std::atoi(argv[1]), world_size = std::atoi(argv[2]);
  tf_libra::MeshOptions options;
  options.rank = rank;
  options.num_lanes = std::atoi(argv[3]);
  options.secret.fill(1);
  const long bytes_before = ResidentBytes();
  const int descriptors_before = NumDescriptors();
  tf_libra::Socket listener;
  tf_libra::Address bound;
  Require(Listen(argv[4], 0, &listener, &bound));
  std::cout << bound.host << " " << bound.port << std::endl;
  for (int i = 0; i < world_size; ++i) {
    tf_libra::Address address;
    std::cin >> address.host >> address.port;
    options.addresses.push_back(address);
  }
  const tf_libra::TimePoint begin = tf_libra::Clock::now();
  tf_libra::Mesh mesh;
  Require(ConnectMesh(options, std::move(listener), &mesh));
  std::shared_ptr<tf_libra::LaneEngine> engine;
  Require(tf_libra::LaneEngine::Start({}, std::move(mesh), &engine));
  const double connected = -tf_libra::SecondsUntil(begin);
  std::vector<std::string> everyone;
  Require(engine->AllGather(std::to_string(rank), &everyone));
  bool is_right = static_cast<int>(everyone.size()) == world_size;
  for (int i = 0; is_right && i < world_size; ++i) is_right = everyone[i] == std::to_string(i);
  const double agreed = -tf_libra::SecondsUntil(begin);
  is_right = AllReduces(engine.get()) && is_right;
  std::cout << connected << " " << agreed << " " << -tf_libra::SecondsUntil(begin) << " "
            << NumDescriptors() - descriptors_before << " " << ResidentBytes() - bytes_before << " "
            << is_right << std::endl;
  std::string line;
  std::cin >> line;  // until all have come so far
  return is_right ? 0 : 1;
}
