// Parts of tensors that ranks own, and the layout of an exchange in which chunks are these parts.
//
// Ownership depends only on a tensor's size and the number of ranks, so that it is the same under
// every plan. Borders are multiples of kOwnedElements: a kernel that computes vectors of
// elements computes each element of a part as it would compute it in the whole tensor.
#ifndef TF_LIBRA_OPS_LANES_OWNED_PARTS_H_
#define TF_LIBRA_OPS_LANES_OWNED_PARTS_H_

#include <cstddef>
#include <vector>

#include "ops/lanes/buffers.h"
#include "ops/lanes/direct_all_reduce.h"

namespace tf_libra {

// The widest vector of any dtype, in elements.
inline constexpr size_t kOwnedElements = 64;

// Returns the elements [begin, end) of a tensor of `num_elements` that `rank` owns.
ByteRange OwnedElements(size_t num_elements, size_t world_size, size_t rank);

// The tensors of one exchange, in the order of lanes, ranks and tensors: each lane has a share of
// every owned part.
struct OwnerLayout {
  Buffers buffers;
  std::vector<ByteRange> slices;               // [lane], of `buffers`
  std::vector<std::vector<ByteRange>> chunks;  // [lane][rank]
};

// Lays out a reduce-scatter or an all-gather.
//
// Reduce-scatter: each input is a whole tensor, and each output the part that `rank` owns.
// All-gather: each output is a whole tensor; the owned part of it goes to the other ranks.
// `num_bytes` are those of whole tensors.
OwnerLayout LayOutByOwner(const std::vector<TensorView>& tensors, size_t element_size,
                          size_t num_lanes, size_t world_size, size_t rank, ExchangeSteps steps);

// The layout of a gathering of `parts` of one tensor, by lane and rank. The input is the part of
// `rank` alone.
OwnerLayout LayOutParts(const TensorView& tensor, const std::vector<ByteRange>& parts,
                        size_t element_size, size_t num_lanes, size_t rank);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_OWNED_PARTS_H_
