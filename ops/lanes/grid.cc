#include "ops/lanes/grid.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

namespace tf_libra {
namespace {

// [rank]: of its row, if these are even.
std::vector<int> RowNumbers(std::vector<int> hosts) {
  const std::set<int> different(hosts.begin(), hosts.end());
  const int num_ranks = static_cast<int>(hosts.size());
  const int row = different.size() == hosts.size() ? Grid::RowOfSquare(num_ranks) : 1;
  if (row == 1) return hosts;
  for (int rank = 0; rank < num_ranks; ++rank) hosts[rank] = rank / row;
  return hosts;
}

}  // namespace

int Grid::RowOfSquare(int num_ranks) {
  if (num_ranks < kLeastSquare) return 1;
  int shorter = 1;
  for (int side = 2; side * side <= num_ranks; ++side) {
    if (num_ranks % side == 0) shorter = side;
  }
  return shorter > 1 ? num_ranks / shorter : 1;
}

Grid::Grid(int rank, int world_size, const std::vector<int>& hosts) {
  const std::vector<int> row_numbers = RowNumbers(hosts);
  std::map<int, std::vector<int>> rows;
  for (int other = 0; other < static_cast<int>(hosts.size()); ++other) {
    rows[row_numbers[other]].push_back(other);
  }
  bool is_even = rows.size() > 1;
  for (const auto& [number, row] : rows) {
    is_even = is_even && row.size() > 1 && row.size() == rows.begin()->second.size();
  }
  if (!is_even) {
    for (int other = 0; other < world_size; ++other) column_.push_back(other);
    place_in_column_ = rank;
    return;
  }
  row_ = rows[row_numbers[rank]];
  place_in_row_ = static_cast<int>(std::find(row_.begin(), row_.end(), rank) - row_.begin());
  for (const auto& [number, row] : rows) column_.push_back(row[place_in_row_]);
  std::sort(column_.begin(), column_.end());
  place_in_column_ =
      static_cast<int>(std::find(column_.begin(), column_.end(), rank) - column_.begin());
}

bool Grid::Meets(int rank) const {
  return std::count(column_.begin(), column_.end(), rank) > 0 ||
         std::count(row_.begin(), row_.end(), rank) > 0;
}

Status WatchPeers(const Grid& grid, const std::vector<Socket>* links, GridPeers* peers) {
  Status status = EpollSet::Make(peers->column, &grid.column(), links, &peers->column_watch);
  if (!status.ok() || !grid.has_rows()) return status;
  return EpollSet::Make(peers->row, &grid.row(), links, &peers->row_watch);
}

ExchangeResult RunOnGrid(ExchangeOptions options, const Grid& grid, const GridPeers& peers,
                         const Buffers& in_place, std::vector<char>* scratch) {
  options.counts_memory = !grid.has_rows();
  ExchangeOptions column = options;
  column.rank = grid.place_in_column();
  column.peers = &peers.column;
  column.names = &grid.column();
  column.watch = peers.column_watch.get();
  if (!grid.has_rows()) return RunExchange(column, scratch);
  uint64_t num_sent = 0, num_omitted = 0;
  const auto run = [&num_sent, &num_omitted, scratch](const ExchangeOptions& level) {
    const ExchangeResult result = RunExchange(level, scratch);
    num_sent += result.num_sent;
    num_omitted += result.num_omitted;
    return result;
  };
  ExchangeOptions row = options;
  row.rank = grid.place_in_row();
  row.peers = &peers.row;
  row.names = &grid.row();
  row.watch = peers.row_watch.get();
  row.steps = ExchangeSteps::kReduceScatter;
  const auto type = static_cast<ElementType>(options.header.element_type);
  const size_t element_size = ElementSize(type);
  column.slice = Part(options.slice, element_size, grid.row().size(), grid.place_in_row());
  const size_t count = column.slice.size() / element_size;
  const bool in_float32 = !options.rounds_each_level &&
                          (type == ElementType::kFloat16 || type == ElementType::kBFloat16);
  if (static_cast<Reduction>(options.header.reduction) == Reduction::kAverage) {
    column.error_factor *= static_cast<float>(grid.row().size());  // of terms that are averages
  }
  const std::unique_ptr<float[]> sums(in_float32 ? new float[count] : nullptr);
  row.float32_sums = sums.get();
  ExchangeResult result = run(row);
  if (!result.status.ok()) return result;
  column.buffers = row.buffers = &in_place;
  row.float32_sums = nullptr;
  if (in_float32) {
    const Buffers buffers({{sums.get(), sums.get(), count * sizeof(float)}});
    ExchangeOptions summing = column;
    summing.buffers = &buffers;
    summing.slice = {0, buffers.num_bytes()};
    summing.has_float32_buffers = true;
    summing.steps = ExchangeSteps::kReduceScatter;
    result = run(summing);
    if (!result.status.ok()) return result;
    const size_t num_rows = grid.column().size();
    const auto reduction = static_cast<Reduction>(options.header.reduction);
    const int num_terms = static_cast<int>(num_rows * grid.row().size());
    const ByteRange own = Part(column.slice, element_size, num_rows, grid.place_in_column());
    const float* sum = sums.get() + (own.begin - column.slice.begin) / element_size;
    in_place.ForEachRun(own, [&](const char*, char* output, size_t size) {
      RoundFromFloat32(type, reduction, num_terms, sum, size / element_size, output);
      sum += size / element_size;
      return true;
    });
    column.steps = ExchangeSteps::kAllGather;
    result.status = run(column).status;
  } else {
    result = run(column);
  }
  if (!result.status.ok()) return result;
  row.steps = ExchangeSteps::kAllGather;
  result.status = run(row).status;
  result.num_sent = num_sent;
  result.num_omitted = num_omitted;
  return result;
}

}  // namespace tf_libra
