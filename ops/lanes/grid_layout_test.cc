// Rows and columns of ranks; what they exchange is tested in grid_test.cc.
#include <vector>

#include "ops/lanes/grid.h"
#include "ops/lanes/hosts_testing.h"

namespace tf_libra::grid_layout_test {
namespace {

using testing::HostsOfOneRank;

TEST_CASE("RowsAndColumns") {
  const Grid grid(4, 6, {7, 7, 3, 3, 5, 5});
  CHECK(grid.has_rows());
  CHECK((grid.row() == std::vector<int>{4, 5}));
  CHECK((grid.column() == std::vector<int>{0, 2, 4}));
  CHECK_EQ(grid.place_in_row(), 0);
  CHECK_EQ(grid.place_in_column(), 2);
  CHECK((grid.Meets(5) && grid.Meets(0) && !grid.Meets(1) && !grid.Meets(3)));
  const Grid turns(3, 4, {0, 1, 0, 1});
  CHECK((turns.row() == std::vector<int>{1, 3}));
  CHECK((turns.column() == std::vector<int>{2, 3}));
}

// One host, hosts of one rank, and hosts that differ: every rank exchanges with
// every other.
TEST_CASE("NoGrid") {
  for (const std::vector<int>& hosts :
       {std::vector<int>{}, {0, 0, 0}, {0, 1, 2}, {0, 0, 1}, {0, 0, 1, 1, 1}}) {
    const int world_size = hosts.empty() ? 3 : static_cast<int>(hosts.size());
    for (int rank = 0; rank < world_size; ++rank) {
      const Grid grid(rank, world_size, hosts);
      CHECK(!grid.has_rows());
      CHECK_EQ(grid.column().size(), static_cast<size_t>(world_size));
      CHECK_EQ(grid.place_in_column(), rank);
      for (int other = 0; other < world_size; ++other) CHECK(grid.Meets(other));
    }
  }
}

TEST_CASE("SquaresOfHosts") {
  const Grid even(6, 16, HostsOfOneRank(16));
  CHECK((even.row() == std::vector<int>{4, 5, 6, 7}));
  CHECK((even.column() == std::vector<int>{2, 6, 10, 14}));
  CHECK_EQ(even.place_in_row(), 2);
  CHECK_EQ(even.place_in_column(), 1);
  const Grid longer(13, 24, HostsOfOneRank(24));
  CHECK((longer.row() == std::vector<int>{12, 13, 14, 15, 16, 17}));
  CHECK((longer.column() == std::vector<int>{1, 7, 13, 19}));
  const Grid longest(12, 22, HostsOfOneRank(22));
  CHECK_EQ(longest.row().size(), size_t{11});
  CHECK((longest.column() == std::vector<int>{1, 12}));
}

// No prime number is one; of the others, from 16 on, each spares as many lanes as 16 do, or more.
TEST_CASE("WhichNumbersAreSquares") {
  CHECK(Grid(0, 15, HostsOfOneRank(15)).column().size() == 15);
  CHECK(Grid(0, 16, HostsOfOneRank(16)).has_rows());
  CHECK(!Grid(0, 16, {}).has_rows());
  for (int num_ranks = 1; num_ranks <= 300; ++num_ranks) {
    bool is_product = false;
    for (int side = 2; side < num_ranks; ++side) is_product |= num_ranks % side == 0;
    const Grid grid(num_ranks - 1, num_ranks, HostsOfOneRank(num_ranks));
    CHECK_EQ(grid.has_rows(), is_product && num_ranks >= 16);
    int met = 0;
    for (int other = 0; other < num_ranks - 1; ++other) met += grid.Meets(other);
    if (!grid.has_rows()) {
      CHECK_EQ(met, num_ranks - 1);
      continue;
    }
    const size_t row = grid.row().size(), column = grid.column().size();
    CHECK_EQ(row * column, static_cast<size_t>(num_ranks));
    CHECK(row >= column);
    CHECK_EQ(static_cast<size_t>(met), row + column - 2);
    CHECK(num_ranks - 1 - met >= 15 - 6);
  }
}

}  // namespace
}  // namespace tf_libra::grid_layout_test
