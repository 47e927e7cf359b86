// What a set of ranks does together, of messages between them: those outside of it know nothing of
// it, and sets do not wait for each other.
//
// As on lanes, a tensor is cut into a part per rank of the set, and each rank owns one. Summands go
// to the owners of their parts directly, are added in the order of the set, and go from there to
// the ranks that need the sum: per rank the bytes of a ring, in two hops. Sums are forwarded while
// more of the parts comes, and parts that wait for those of other ranks are held in a buffer of
// fixed size.
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
  kAllReduce,      // every rank has the sum
  kReduceScatter,  // each has its part of the sum, of equal parts
  kAllGather,      // every rank has the tensors of all, one behind the other
  kBroadcast,      // every rank has that of `root`
  kReduce,         // `root` has the sum, the others zeros
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

// "all_reduce (sum) of float32 [4] over ranks 0, 2". Of a large set, in place of all ranks, the
// first ones and the last, their number and a digest of them in their order.
std::string Describe(const CollectiveRequest& request);

// Returns immediately. `is_over`: the rank is alone in the set, and finished. In this case, and if
// this returns an error or throws, nothing goes on and `done` is not called.
// InvalidArgument: the set is none that rank `rank` is of.
Status RunCollective(Messenger* messenger, int rank, int world_size, CollectiveRequest request,
                     bool* is_over);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_COLLECTIVE_H_
