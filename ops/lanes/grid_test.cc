#include "ops/lanes/grid.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/engine_testing.h"
#include "ops/lanes/hosts_testing.h"
#include "ops/lanes/lane_engine.h"
#include "ops/lanes/testing.h"

namespace tf_libra::grid_test {
namespace {

using testing::ConnectHosts;
using testing::Hosts;
using testing::kGenerousSeconds;
using testing::OnEveryRank;
using testing::Operation;

using Bytes = std::vector<char>;

// Of two tensors; in place by two lanes.
Operation Reducing(ElementType type, Reduction reduction, size_t count, int num_threads = 1) {
  Operation operation;
  operation.counts = {count / 3, count - count / 3};
  operation.type = type;
  operation.reduction = reduction;
  operation.num_threads = num_threads;
  operation.in_place = num_threads == 2;
  return operation;
}

Bytes Values(const Operation& operation, int rank) {
  return testing::Gradients(operation, rank, /*seed=*/0);
}

// Random bits between 0.25 and 4, of either sign, in 16 bits.
Bytes Mantissas(const Operation& operation, int rank) {
  std::mt19937 random(rank + 1);
  Bytes values(operation.num_elements() * 2);
  const bool is_float16 = operation.type == ElementType::kFloat16;
  for (size_t i = 0; i < operation.num_elements(); ++i) {
    const uint32_t exponent = (is_float16 ? 13 : 125) + random() % 4;
    const uint32_t mantissa = random() & (is_float16 ? 0x83ff : 0x807f);
    const auto bits = static_cast<uint16_t>(mantissa | exponent << (is_float16 ? 10 : 7));
    std::memcpy(values.data() + 2 * i, &bits, sizeof(bits));
  }
  return values;
}

Status AllReduceInPlace(Engine* engine, const Operation& operation, Bytes* values) {
  auto info = std::make_shared<OperationInfo>();
  info->reduction = operation.reduction;
  info->tensor_names = {"values"};
  info->ComputeDigest();
  AllReduceRequest request;
  request.operation = info;
  request.element_type = operation.type;
  request.tensors = {{values->data(), values->data(), values->size()}};
  std::promise<Status> end;
  request.done = [&end](const Status& status) { end.set_value(status); };
  engine->AllReduce(std::move(request));
  return end.get_future().get();
}

Bytes Reduced(const Operation& operation, const std::vector<Bytes>& inputs) {
  std::vector<const void*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  Bytes result(inputs[0].size());
  ReduceBlock(operation.type, operation.reduction, pointers, operation.num_elements(),
              result.data());
  return result;
}

// Within each row in the order of ranks, then over rows by their first ranks; where there are none,
// over all ranks. Float16 and bfloat16: in float32, rounded once.
Bytes Expected(const std::vector<int>& hosts, const Operation& operation) {
  const int world_size = static_cast<int>(hosts.size());
  std::map<int, std::vector<Bytes>> rows;  // by first rank
  for (int rank = 0; rank < world_size; ++rank) {
    const Grid grid(rank, world_size, hosts);
    rows[grid.has_rows() ? grid.row()[0] : 0].push_back(Values(operation, rank));
  }
  if (rows.size() > 1 && ElementSize(operation.type) == 2) {
    const size_t count = operation.num_elements();
    std::vector<std::vector<float>> sums;
    std::vector<const void*> of_rows;
    for (const auto& [first, row] : rows) {
      std::vector<const void*> terms;
      for (const Bytes& values : row) terms.push_back(values.data());
      sums.emplace_back(count);
      SumInFloat32(operation.type, terms, count, sums.back().data());
    }
    for (const std::vector<float>& sum : sums) of_rows.push_back(sum.data());
    std::vector<float> sum(count);
    ReduceBlock(ElementType::kFloat32, Reduction::kSum, of_rows, count, sum.data());
    Bytes result(2 * count);
    RoundFromFloat32(operation.type, operation.reduction, world_size, sum.data(), count,
                     result.data());
    return result;
  }
  std::vector<Bytes> sums;
  for (const auto& [first, row] : rows) sums.push_back(Reduced(operation, row));
  return sums.size() > 1 ? Reduced(operation, sums) : sums[0];
}

// Of everything the same bits on every rank, whatever the lanes, the groups and the order, and of
// every type of elements.
TEST_CASE("SumsOfGrids") {
  const std::vector<std::pair<std::vector<int>, int>> cases = {
      {Hosts(2, 2), 2},       {Hosts(2, 2, true), 2}, {Hosts(3, 2), 2},
      {Hosts(2, 3, true), 3}, {Hosts(4, 2), 2},       {Hosts(1, 3), 3},
      {Hosts(3, 1), 1},       {{0, 0, 1}, 0},         {testing::HostsOfOneRank(18), 1}};
  for (const auto& one : cases) {
    const std::vector<int>& hosts = one.first;
    constexpr int kLanes = 3;
    const int world_size = static_cast<int>(hosts.size());
    std::vector<Mesh> meshes = ConnectHosts(hosts, kLanes);
    std::vector<std::pair<Operation, Bytes>> operations;  // and what comes of them
    for (const ElementType type : {ElementType::kFloat32, ElementType::kFloat16,
                                   ElementType::kBFloat16, ElementType::kFloat64}) {
      for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
        for (const size_t count : {size_t{1}, size_t{5}, size_t{1000}, size_t{200'000}}) {
          if (count > 1000 && type != ElementType::kFloat32) continue;
          const Bytes expected = Expected(hosts, Reducing(type, reduction, count));
          for (int num_threads = 1; num_threads <= kLanes; ++num_threads) {
            operations.emplace_back(Reducing(type, reduction, count, num_threads), expected);
          }
        }
      }
    }
    OnEveryRank(world_size, [&](int rank) {
      const auto engine = testing::MakeEngine(testing::Patient(), std::move(meshes[rank]));
      CHECK_EQ(engine->ranks_per_host(), one.second);
      for (const auto& [operation, expected] : operations) {
        Bytes output;
        CHECK_EQ(testing::AllReduce(engine.get(), operation, /*seed=*/0, &output), testing::IsOk());
        CHECK(output == expected);
      }
    });
  }
}

// Gradients in 16 bits get the bits that a mesh without rows gives: their sums are exact in
// float32.
TEST_CASE("GridsAndMeshesAgreeIn16Bits") {
  constexpr size_t kCount = 3000;
  for (const std::vector<int>& hosts : {Hosts(2, 2), Hosts(2, 3), Hosts(4, 2), Hosts(2, 4, true)}) {
    const int world_size = static_cast<int>(hosts.size());
    std::vector<Mesh> meshes = ConnectHosts(hosts, 1);
    std::vector<std::pair<Operation, Bytes>> operations;
    for (const ElementType type : {ElementType::kFloat16, ElementType::kBFloat16}) {
      for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
        const Operation operation = Reducing(type, reduction, kCount);
        std::vector<Bytes> inputs;
        for (int rank = 0; rank < world_size; ++rank) inputs.push_back(Mantissas(operation, rank));
        operations.emplace_back(operation, Reduced(operation, inputs));
      }
    }
    OnEveryRank(world_size, [&](int rank) {
      CHECK(meshes[rank].grid.has_rows());
      const auto engine = testing::MakeEngine(testing::Patient(), std::move(meshes[rank]));
      for (const auto& [operation, expected] : operations) {
        Bytes values = Mantissas(operation, rank);
        CHECK_EQ(AllReduceInPlace(engine.get(), operation, &values), testing::IsOk());
        CHECK(values == expected);
      }
    });
  }
}

uint64_t BytesSent(const Socket& socket) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  CHECK_EQ(getsockopt(socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  return info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
}

// What an engine does on 64 ranks: agree, all-reduce, and something in a
// column.
void CheckEngine(int rank, Mesh mesh) {
  const int world_size = mesh.world_size;
  const std::vector<int> column = mesh.grid.column();
  LaneEngineOptions options;
  options.timeout_seconds = kGenerousSeconds;
  std::shared_ptr<LaneEngine> engine;
  CHECK_EQ(LaneEngine::Start(options, std::move(mesh), &engine), testing::IsOk());
  std::vector<std::string> said;
  CHECK_EQ(engine->AllGather(std::to_string(rank), &said), testing::IsOk());
  CHECK_EQ(said.size(), static_cast<size_t>(world_size));
  for (size_t other = 0; other < said.size(); ++other) CHECK_EQ(said[other], std::to_string(other));
  std::vector<float> ones(1000, 1);
  std::promise<Status> reduced, gathered;
  auto info = std::make_shared<OperationInfo>();
  info->reduction = Reduction::kSum;
  info->tensor_names = {"ones"};
  info->ComputeDigest();
  AllReduceRequest request;
  request.operation = info;
  request.tensors = {{ones.data(), ones.data(), 4 * ones.size()}};
  request.done = [&reduced](const Status& status) { reduced.set_value(status); };
  engine->AllReduce(std::move(request));
  const auto mine = static_cast<float>(rank);
  std::vector<float> all(column.size());
  CollectiveRequest gather;
  gather.kind = CollectiveKind::kAllGather;
  gather.ranks = column;
  gather.name = "ranks";
  gather.input = reinterpret_cast<const char*>(&mine);
  gather.output = reinterpret_cast<char*>(all.data());
  gather.num_bytes = sizeof(mine);
  gather.done = [&gathered](const Status& status) { gathered.set_value(status); };
  engine->Run(std::move(gather));
  CHECK_EQ(reduced.get_future().get(), testing::IsOk());
  CHECK_EQ(gathered.get_future().get(), testing::IsOk());
  CHECK(ones == std::vector<float>(1000, static_cast<float>(world_size)));
  for (size_t i = 0; i < column.size(); ++i) CHECK_EQ(all[i], static_cast<float>(column[i]));
  // No rank leaves while others still have something to do with it.
  CHECK_EQ(engine->AllGather("", &said), testing::IsOk());
}

// 64 ranks on so many hosts, in rows of eight: connections of row and column alone, memory within
// hosts, and over each host's link not more than a ring's bytes.
void InRowsOfEight(int num_hosts) {
  constexpr int kRow = 8, kWorld = kRow * kRow;
  constexpr size_t kCount = 64 * 1024;
  const int num_local = kWorld / num_hosts;
  const std::vector<int> hosts = Hosts(num_hosts, num_local);
  std::vector<Mesh> meshes = ConnectHosts(hosts, 1);
  const Operation operation = Reducing(ElementType::kFloat32, Reduction::kSum, kCount);
  const Bytes expected = Expected(hosts, operation);
  OnEveryRank(kWorld, [&](int rank) {
    Mesh& mesh = meshes[rank];
    CHECK_EQ(WatchPeers(mesh.grid, &mesh.links, &mesh.lanes[0]), testing::IsOk());
    Bytes values = Values(operation, rank);
    const Buffers buffers({{values.data(), values.data(), 4 * kCount}});
    ExchangeOptions options;
    options.header.element_type = static_cast<uint8_t>(ElementType::kFloat32);
    options.header.num_bytes = 4 * kCount;
    options.links = &mesh.links;
    options.buffers = &buffers;
    options.slice = {0, 4 * kCount};
    options.timeout_seconds = kGenerousSeconds;
    std::vector<char> scratch;
    CHECK_EQ(RunOnGrid(options, mesh.grid, mesh.lanes[0], buffers, &scratch).status,
             testing::IsOk());
    CHECK(values == expected);
  });
  // Control is a tree, with few connections of any rank.
  size_t num_ends = 0;
  for (const Mesh& mesh : meshes) {
    const auto count = std::count_if(mesh.control.begin(), mesh.control.end(),
                                     [](const Socket& socket) { return socket.valid(); });
    CHECK(count <= 2 * Tree::kBranches + 1);
    num_ends += static_cast<size_t>(count);
  }
  CHECK_EQ(num_ends, size_t{2 * (kWorld - 1)});
  const double ring = 2.0 * (kWorld - 1) / kWorld * 4 * kCount;
  std::vector<uint64_t> sent(num_hosts);
  for (int rank = 0; rank < kWorld; ++rank) {
    const GridPeers& lane = meshes[rank].lanes[0];
    size_t num_connections = 0;
    const auto look = [&](const Connection& one, bool is_near) {
      if (!one.valid()) return;
      ++num_connections;
      CHECK_EQ(one.memory != nullptr, is_near);
      if (!is_near) sent[hosts[rank]] += BytesSent(one.socket);
    };
    for (const Connection& one : lane.row) look(one, num_local > 1);
    for (const Connection& one : lane.column) look(one, false);
    CHECK_EQ(num_connections, size_t{2 * (kRow - 1)});
  }
  for (const uint64_t bytes : sent) {
    CHECK(static_cast<double>(bytes) <= 1.05 * ring);
    CHECK(static_cast<double>(bytes) >= 0.5 * ring);
  }
  OnEveryRank(kWorld, [&](int rank) { CheckEngine(rank, std::move(meshes[rank])); });
}

TEST_CASE("SixtyFourRanks") { InRowsOfEight(8); }
TEST_CASE("SixtyFourHosts") { InRowsOfEight(64); }

// A rank that others pass messages by, or another one, dies: all say so, also those that exchange
// nothing with it.
void AllSayWhoIsLost(const std::vector<int>& hosts) {
  const int world_size = static_cast<int>(hosts.size());
  for (const int lost : {0, 4, 6}) {
    std::vector<Mesh> meshes = ConnectHosts(hosts, 1);
    std::vector<std::shared_ptr<LaneEngine>> engines(world_size);
    OnEveryRank(world_size, [&](int rank) {
      if (rank == lost) {
        meshes[rank] = Mesh();
        return;
      }
      LaneEngineOptions options;
      options.timeout_seconds = kGenerousSeconds;
      CHECK_EQ(LaneEngine::Start(options, std::move(meshes[rank]), &engines[rank]),
               testing::IsOk());
      std::vector<float> ones(1000, 1);
      auto info = std::make_shared<OperationInfo>();
      info->tensor_names = {"ones"};
      info->ComputeDigest();
      AllReduceRequest request;
      request.operation = info;
      request.tensors = {{ones.data(), ones.data(), 4 * ones.size()}};
      std::promise<Status> end;
      request.done = [&end](const Status& status) { end.set_value(status); };
      engines[rank]->AllReduce(std::move(request));
      CHECK_EQ(end.get_future().get(),
               testing::StatusIs(StatusCode::kUnavailable, "rank " + std::to_string(lost) + " "));
    });
  }
}

TEST_CASE("AllOfAGridSayWhoIsLost") { AllSayWhoIsLost(Hosts(4, 4)); }
TEST_CASE("AllOfASquareSayWhoIsLost") { AllSayWhoIsLost(testing::HostsOfOneRank(16)); }

// Nothing is known of hosts: every rank has lanes to every other.
TEST_CASE("SixtyFourRanksWithoutHosts") {
  std::vector<Mesh> meshes = testing::ConnectAll(64, 1);
  OnEveryRank(64, [&](int rank) { CheckEngine(rank, std::move(meshes[rank])); });
}

}  // namespace
}  // namespace tf_libra::grid_test
