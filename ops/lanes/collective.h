// Collectives over a set of ranks, made of messages between them. Ranks outside the set take no
// part, and sets do not wait for each other.
//
// A tensor is cut into one part per rank of the set, and each rank owns one part, as on lanes. The
// contributions to a part are sent directly to its owner, summed in the order of the set, and the
// sum is sent to the ranks that need it: per rank the bytes of a ring, in two hops. Sums are sent
// while more contributions arrive. Contributions of ranks of the same host are summed in shared
// memory (Transfer::in_place); others wait in a buffer of fixed size.
#ifndef TF_LIBRA_OPS_LANES_COLLECTIVE_H_
#define TF_LIBRA_OPS_LANES_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/lanes/element.h"
#include "ops/lanes/messenger.h"
#include "ops/lanes/status.h"

namespace tf_libra {

enum class CollectiveKind : uint8_t {
  kAllReduce,      // every rank gets the sum
  kReduceScatter,  // each rank gets its equal part of the sum
  kAllGather,      // every rank gets the tensors of all ranks, concatenated
  kBroadcast,      // every rank gets the tensor of `root`
  kReduce,         // `root` gets the sum, the other ranks zeros
};
const char* CollectiveName(CollectiveKind kind);
bool Sums(CollectiveKind kind);

struct CollectiveRequest {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<int> ranks;  // the set, in the order of summation; the own rank is one of them
  int root = -1;           // a rank of the set, for kBroadcast and kReduce
  std::string name;        // unique among the concurrent ones between two ranks
  std::string content;     // as "float32 [8, 16]"
  ElementType element_type = ElementType::kFloat32;  // of what is summed
  size_t element_size = 4;
  Reduction reduction = Reduction::kSum;
  // Alive until `done` is called. The output of kAllGather is as large as all inputs, that of
  // kReduceScatter as one part; the others' may be the same memory as the input.
  const char* input = nullptr;
  char* output = nullptr;
  size_t num_bytes = 0;                     // of the input
  std::function<void(const Status&)> done;  // exactly once, from any thread
};

// "all_reduce (sum) of float32 [4] over ranks 0, 2". For a large set: the first ranks, the last
// one, their number, and a digest of the ordered list.
std::string Describe(const CollectiveRequest& request);

// Returns immediately. `is_over`: the rank is alone in the set, and the collective is complete.
// Then, and after an error or exception, `done` is not called. InvalidArgument: the set does not
// contain rank `rank`, or the request is not valid.
Status RunCollective(Messenger* messenger, int rank, int world_size, CollectiveRequest request,
                     bool* is_over);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_COLLECTIVE_H_
