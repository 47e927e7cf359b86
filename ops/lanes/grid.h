// Ranks as a grid: a rank exchanges with those of its row and of its column alone. It sums a part
// of everything within its row, that part over rows, and passes it on within its row.
//
// Where every host has as many ranks, two or more, a row is a host, and a column has those of one
// place within hosts. Each host's link then carries the bytes of a ring over hosts, instead of
// those of every pair of ranks.
//
// Where every host has one rank, rows are consecutive ranks, as many as make the grid as near to a
// square as their number allows. A link carries the same bytes either way. But a rank sends to some
// 2 (sqrt(N) - 1) others instead of N - 1, which takes less of its core and fewer connections, at
// the price of two hops more. From kLeastSquare ranks on that pays (docs/scaling.md).
//
// Else every rank exchanges with every other.
#ifndef TF_LIBRA_OPS_LANES_GRID_H_
#define TF_LIBRA_OPS_LANES_GRID_H_

#include <memory>
#include <vector>

#include "ops/lanes/direct_all_reduce.h"

namespace tf_libra {

class Grid {
 public:
  Grid() = default;
  // `hosts[rank]`: a number for the host of each rank; empty: nothing is known of hosts.
  Grid(int rank, int world_size, const std::vector<int>& hosts);

  // Least number of hosts of one rank that are arranged as a square. From here on, each rank saves
  // at least as many connections as in a grid of four by four.
  static constexpr int kLeastSquare = 16;
  // Returns the row length for hosts of one rank: the longer side of the grid that is nearest to a
  // square. 1, as for a prime number, means that every rank exchanges with every other one.
  static int RowOfSquare(int num_ranks);

  bool has_rows() const { return row_.size() > 1; }
  // Empty where every rank exchanges with every other.
  const std::vector<int>& row() const { return row_; }
  // The ranks of the own place in all rows, or all ranks.
  const std::vector<int>& column() const { return column_; }
  int place_in_row() const { return place_in_row_; }
  int place_in_column() const { return place_in_column_; }
  // Returns whether they exchange directly.
  bool Meets(int rank) const;

 private:
  std::vector<int> row_, column_;
  int place_in_row_ = 0, place_in_column_ = 0;
};

// Connections of a lane on a grid.
struct GridPeers {
  std::vector<Connection> row, column;  // by index, own entries invalid
  std::unique_ptr<EpollSet> row_watch, column_watch;
};

// Makes the watches: of what there is, and of the links to those ranks, as EpollSet::Make.
Status WatchPeers(const Grid& grid, const std::vector<Socket>* links, GridPeers* peers);

// As RunExchange, over both, of peers that are watched. Of `options` rank, peers, names and steps
// are set here; `in_place` are its buffers' outputs, as inputs, too.
//
// A grid adds the terms within each row in rank order, and then the sums of rows in the order of
// rows. A mesh without rows adds all terms in rank order. So the last bits of float32 and float64
// may differ between layouts of the same ranks, and are the same on every rank of one layout; an
// average is divided in each level. Float16 and bfloat16 are summed in float32 over both levels,
// then divided and rounded once. Their results differ between layouts only if a float32 sum is
// inexact and close to the middle between two results. Their sums between rows have four bytes per
// element; over the link between hosts go one and a half times the bytes of sums in 16 bits.
ExchangeResult RunOnGrid(ExchangeOptions options, const Grid& grid, const GridPeers& peers,
                         const Buffers& in_place, std::vector<char>* scratch);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_GRID_H_
