// The all-reduce of one slice over one lane: a direct reduce-scatter, then a direct all-gather.
//
// A lane has one connection to every other rank. Its slice is cut into one chunk per rank, and
// rank k owns chunk k. Every rank sends its part of chunk k to rank k, which adds the parts in
// rank order and sends the result back to everyone. Bytes on the wire per rank are those of a
// ring, 2(N-1)/N of the slice each way (LIBRA Eq. 4), but a chunk makes two hops instead of
// 2(N-1), and the order of summation is fixed. Nothing is packed: bytes go from the input
// tensors to the wire and from the wire to the output tensors; only the parts of the own chunk
// wait in a scratch block until every rank's part of that block is there. Where two ranks share
// memory, the wire is rings in it, and parts are summed out of the ring itself. Blocks of zeros do
// not travel.
//
// Each rank begins with the one behind it, so that not all turn to the same first. After a wait it
// turns to those who have news, and to those who share memory, where a look costs no call.
#ifndef TF_LIBRA_OPS_LANES_DIRECT_ALL_REDUCE_H_
#define TF_LIBRA_OPS_LANES_DIRECT_ALL_REDUCE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/lanes/buffers.h"
#include "ops/lanes/connection.h"
#include "ops/lanes/direct_all_reduce_header.h"
#include "ops/lanes/element.h"
#include "ops/lanes/epoll_set.h"
#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"

namespace tf_libra {

enum class ExchangeSteps {
  kAll,
  kReduceScatter,  // the own chunk is summed, and the rest of the output untouched
  kAllGather,      // the own chunk of the output goes to all, and theirs come
};

struct ExchangeOptions {
  int rank = 0;                                    // the index among those below
  const std::vector<Connection>* peers = nullptr;  // [index], own entry invalid
  // The ranks at these indices; nullptr: as their indices are.
  const std::vector<int>* names = nullptr;
  const std::vector<Socket>* links = nullptr;  // [rank], watched; nullptr or invalid: none
  EpollSet* watch = nullptr;                   // of peers and links, from one exchange to the next
  ExchangeSteps steps = ExchangeSteps::kAll;
  // All-gather: by what the own chunk of the input is divided on its way to the output; 0: the
  // output has it already.
  int own_divisor = 0;
  ExchangeHeader header;
  const Buffers* buffers = nullptr;
  ByteRange slice;
  // Chunks of the slice, by index; nullptr: even parts.
  const std::vector<ByteRange>* chunks = nullptr;
  // For sums of float16 and bfloat16 in two levels (grid.h). The first level writes its sums, in
  // float32 and not divided, from here on, and nothing to the output. The second level sums buffers
  // of float32, whatever type the header names, and divides nothing.
  float* float32_sums = nullptr;
  bool has_float32_buffers = false;
  // On a grid, sums of float16 and bfloat16 are rounded in each level instead.
  bool rounds_each_level = false;
  // Error feedback of sums that are rounded: by element of `buffers`, which have 16 bits each. A
  // rank adds the error of each element that it rounds, times `error_factor`, which is the number
  // of terms of which the summed ones are averages.
  float* rounding_errors = nullptr;
  float error_factor = 1;
  // Blocks of zeros are left out: over sockets (zero_blocks.h) and in memory (zero_marks.h).
  bool omits_zeros = true;
  // If all peers share memory, counts what goes through it.
  bool counts_memory = true;
  double timeout_seconds = 600;
  double stall_warning_seconds = 30;
  // Called once per stall with the ranks that are waited for.
  std::function<void(const std::string& ranks, double seconds)> on_stall;
};

struct ExchangeResult {
  Status status;
  int64_t first_byte_nanos = 0;  // SteadyNanos when every peer had sent one; 0 without peers
  // Bytes that this rank has sent, without headers, and those that it has left out: over sockets,
  // or if there are none, in memory.
  uint64_t num_sent = 0;
  uint64_t num_omitted = 0;
};

// Runs in the caller's thread until done, failed, or no peer has made progress for
// `timeout_seconds`. `scratch` is kept between calls to save allocations.
ExchangeResult RunExchange(const ExchangeOptions& options, std::vector<char>* scratch);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_DIRECT_ALL_REDUCE_H_
