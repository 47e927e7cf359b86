// One rank of many, as light as a rank can be: it listens, connects to all others, agrees with them
// and all-reduces once, then as often as requested. Started by benchmarks/scaling.py, which defines
// what it prints.
#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <numeric>
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

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
         1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// This rank's ends of its connections.
class Connections {
 public:
  // Before an engine takes the sockets, which keep their numbers.
  explicit Connections(const tf_libra::Mesh& mesh) : world_size_(mesh.world_size) {
    for (const tf_libra::GridPeers& lane : mesh.lanes) {
      Add(mesh.grid.row(), lane.row, &num_lanes_);
      Add(mesh.grid.column(), lane.column, &num_lanes_);
    }
    std::vector<int> all_ranks(world_size_);
    std::iota(all_ranks.begin(), all_ranks.end(), 0);
    Add(all_ranks, mesh.messages, &num_messages_);
    Add(mesh.links, &num_watched_);
    Add(mesh.control, &num_control_);
  }

  void Print() const {
    std::cout << num_lanes_ << " " << num_messages_ << " " << num_watched_ << " " << num_control_
              << std::endl;
  }

  // [rank]: payload that the kernel has sent to it over TCP, without what was lost on the way, and
  // has received, since these connections were made.
  using Traffic = std::vector<std::pair<uint64_t, uint64_t>>;
  Traffic Count() const {
    Traffic traffic(world_size_);
    for (const auto& [rank, fd] : ends_) {
      tcp_info info{};
      socklen_t length = sizeof(info);
      if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;  // no TCP
      traffic[rank].first += info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
      traffic[rank].second += info.tcpi_bytes_received;
    }
    return traffic;
  }

 private:
  void Add(const std::vector<int>& ranks, const std::vector<tf_libra::Connection>& connections,
           int* count) {
    for (size_t index = 0; index < connections.size(); ++index) {
      Add(ranks[index], connections[index].socket, count);
    }
  }
  void Add(const std::vector<tf_libra::Socket>& sockets, int* count) {
    for (size_t rank = 0; rank < sockets.size(); ++rank) {
      Add(static_cast<int>(rank), sockets[rank], count);
    }
  }
  void Add(int rank, const tf_libra::Socket& socket, int* count) {
    if (!socket.valid()) return;
    ends_.emplace_back(rank, socket.fd());
    ++*count;
  }

  const int world_size_;
  std::vector<std::pair<int, int>> ends_;  // rank and descriptor
  int num_lanes_ = 0, num_messages_ = 0, num_watched_ = 0, num_control_ = 0;
};

// Whether every rank's ones add up.
bool AllReduces(tf_libra::Engine* engine, size_t num_bytes) {
  std::vector<float> ones(num_bytes / sizeof(float), 1.0f);
  AllReduce(engine, ones.data(), ones.size(), engine->max_threads());
  const auto sum = static_cast<float>(engine->world_size());
  return std::all_of(ones.begin(), ones.end(), [sum](float one) { return one == sum; });
}

// Prints the mean time of an all-reduce that all ranks begin concurrently: wall seconds, and
// seconds of a core of this process.
void Time(tf_libra::Engine* engine, size_t num_bytes, int repetitions) {
  const bool is_right = AllReduces(engine, num_bytes);
  std::vector<float> values(num_bytes / sizeof(float), 1.0f);  // zeros would not be sent
  std::vector<std::string> everyone;
  Require(engine->AllGather("", &everyone));
  const double cpu_before = CpuSeconds();
  const tf_libra::TimePoint begin = tf_libra::Clock::now();
  for (int i = 0; i < repetitions; ++i) {
    AllReduce(engine, values.data(), values.size(), engine->max_threads());
  }
  std::cout << -tf_libra::SecondsUntil(begin) / repetitions << " "
            << (CpuSeconds() - cpu_before) / repetitions << " " << is_right << std::endl;
}

void ListenAt(const char* host, tf_libra::Socket* listener) {
  tf_libra::Address bound;
  Require(Listen(host, 0, listener, &bound));
  std::cout << bound.host << " " << bound.port << " ";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    std::cerr << "usage: scaling RANK RANKS LANES HOST RANKS_PER_HOST LISTENS_LOCALLY BYTES"
              << std::endl;
    return 2;
  }
  const int rank = std::atoi(argv[1]), world_size = std::atoi(argv[2]);
  const int ranks_per_host = std::atoi(argv[5]);         // of hosts that are pretended; 0: of none
  const bool listens_locally = std::atoi(argv[6]) != 0;  // listens for those of its host, too
  const size_t num_bytes = std::strtoull(argv[7], nullptr, 10);
  tf_libra::MeshOptions options;
  options.rank = rank;
  options.num_lanes = std::atoi(argv[3]);
  options.secret.fill(1);
  const long bytes_before = ResidentBytes();
  const int descriptors_before = NumDescriptors();
  tf_libra::Socket listener, local_listener;
  ListenAt(argv[4], &listener);
  if (listens_locally) ListenAt(tf_libra::kUnixHost, &local_listener);
  std::cout << std::endl;
  for (int i = 0; i < world_size; ++i) {
    tf_libra::Address address;
    std::cin >> address.host >> address.port;
    options.addresses.push_back(address);
    if (ranks_per_host > 0) options.hosts.push_back(i / ranks_per_host);
    if (!listens_locally) continue;
    std::cin >> address.host >> address.port;
    options.local_addresses.push_back(address);
  }
  const double cpu_before = CpuSeconds();
  const tf_libra::TimePoint begin = tf_libra::Clock::now();
  tf_libra::Mesh mesh;
  Require(ConnectMesh(options, std::move(listener), &mesh, std::move(local_listener)));
  const Connections connections(mesh);
  std::shared_ptr<tf_libra::LaneEngine> engine;
  Require(tf_libra::LaneEngine::Start({}, std::move(mesh), &engine));
  const double connected = -tf_libra::SecondsUntil(begin);
  const double cpu = CpuSeconds() - cpu_before;
  // No rank all-reduces before this rank agrees.
  const Connections::Traffic before = connections.Count();
  std::vector<std::string> everyone;
  Require(engine->AllGather(std::to_string(rank), &everyone));
  bool is_right = static_cast<int>(everyone.size()) == world_size;
  for (int i = 0; is_right && i < world_size; ++i) is_right = everyone[i] == std::to_string(i);
  const double agreed = -tf_libra::SecondsUntil(begin);
  is_right = AllReduces(engine.get(), num_bytes) && is_right;
  const double reduced = -tf_libra::SecondsUntil(begin);
  // Everybody has everything: nothing is under way any more.
  Require(engine->AllGather("", &everyone));
  const Connections::Traffic after = connections.Count();
  std::cout << connected << " " << agreed << " " << reduced << " "
            << NumDescriptors() - descriptors_before << " " << ResidentBytes() - bytes_before << " "
            << cpu << " " << is_right << std::endl;
  connections.Print();
  for (int i = 0; i < world_size; ++i) std::cout << after[i].first - before[i].first << " ";
  std::cout << std::endl;
  for (int i = 0; i < world_size; ++i) std::cout << after[i].second - before[i].second << " ";
  std::cout << std::endl;
  // Input ends when all have come so far.
  int repetitions = 0;
  for (size_t size = 0; std::cin >> size >> repetitions;) Time(engine.get(), size, repetitions);
  return is_right ? 0 : 1;
}
