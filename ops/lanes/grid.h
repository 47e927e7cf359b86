// Ranks as a grid: a row for each host, a column for each place within hosts.
//
// Where every host has as many ranks, two or more, a rank exchanges with those of its row and of
// its column alone: it sums a part of everything within its host, that part over hosts, and passes
// it on within its host. Each host's link then carries the bytes of a ring over hosts, instead of
// those of every pair of ranks, and a rank has connections to row and column instead of to all.
#ifndef TF_LIBRA_OPS_LANES_GRID_H_
#define TF_LIBRA_OPS_LANES_GRID_H_

#include <memory>
#include <vector>

#include "ops/lanes/exchange.h"

namespace tf_libra {

class Grid {
 public:
  Grid() = default;
  // `hosts[rank]`: a number for the host of each rank; empty: nothing is known of hosts.
  Grid(int rank, int world_size, const std::vector<int>& hosts);

  bool has_rows() const { return row_.size() > 1; }
  // The own host's ranks; empty where every rank exchanges with every other.
  const std::vector<int>& row() const { return row_; }
  // The ranks of the own place in all hosts, or all ranks.
  const std::vector<int>& column() const { return column_; }
  int place_in_row() const { return place_in_row_; }
  int place_in_column() const { return place_in_column_; }
  // Whether they exchange directly.
  bool Meets(int rank) const;

 private:
  std::vector<int> row_, column_;
  int place_in_row_ = 0, place_in_column_ = 0;
};

// What a lane has on a grid.
struct GridPeers {
  std::vector<Connection> row, column;  // by place, own entries invalid
  std::unique_ptr<Watch> row_watch, column_watch;
};

// Makes the watches: of what there is, and of the links to those ranks, as Watch::Make.
Status WatchPeers(const Grid& grid, const std::vector<Socket>* links, GridPeers* peers);

// As RunExchange, over both, of peers that are watched. Of `options` rank, peers, names and steps
// are set here; `in_place` are its buffers' outputs, as inputs, too. Sums of a row are rounded
// before those of a column.
ExchangeResult RunOnGrid(ExchangeOptions options, const Grid& grid, const GridPeers& peers,
                         const Buffers& in_place, std::vector<char>* scratch);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_GRID_H_
