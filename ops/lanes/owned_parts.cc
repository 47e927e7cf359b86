#include "ops/lanes/owned_parts.h"

#include <utility>

namespace tf_libra {

ByteRange OwnedElements(size_t num_elements, size_t world_size, size_t rank) {
  const auto border = [&](size_t index) {
    if (index == world_size) return num_elements;
    return num_elements * index / world_size / kOwnedElements * kOwnedElements;
  };
  return {border(rank), border(rank + 1)};
}

OwnerLayout LayOutByOwner(const std::vector<TensorView>& tensors, size_t element_size,
                          size_t num_lanes, size_t world_size, size_t rank, ExchangeSteps steps) {
  OwnerLayout layout;
  std::vector<TensorView> views;
  views.reserve(num_lanes * world_size * tensors.size());
  size_t at = 0;
  for (size_t lane = 0; lane < num_lanes; ++lane) {
    const size_t slice_begin = at;
    layout.chunks.emplace_back();
    for (size_t owner = 0; owner < world_size; ++owner) {
      const size_t chunk_begin = at;
      for (const TensorView& tensor : tensors) {
        const ByteRange owned = OwnedElements(tensor.num_bytes / element_size, world_size, owner);
        const ByteRange share = Part({owned.begin * element_size, owned.end * element_size},
                                     element_size, num_lanes, lane);
        if (share.size() == 0) continue;
        TensorView view;
        view.num_bytes = share.size();
        if (steps == ExchangeSteps::kAllGather) {
          view.output = static_cast<char*>(tensor.output) + share.begin;
          view.input = view.output;
        } else {
          view.input = static_cast<const char*>(tensor.input) + share.begin;
          // Parts of other ranks are sent, and never written.
          view.output = owner == rank ? static_cast<char*>(tensor.output) +
                                            (share.begin - owned.begin * element_size)
                                      : const_cast<void*>(view.input);
        }
        views.push_back(view);
        at += share.size();
      }
      layout.chunks.back().push_back({chunk_begin, at});
    }
    layout.slices.push_back({slice_begin, at});
  }
  layout.buffers = Buffers(std::move(views));
  return layout;
}

OwnerLayout LayOutParts(const TensorView& tensor, const std::vector<ByteRange>& parts,
                        size_t element_size, size_t num_lanes, size_t rank) {
  OwnerLayout layout;
  std::vector<TensorView> views;
  views.reserve(num_lanes * parts.size());
  size_t at = 0;
  for (size_t lane = 0; lane < num_lanes; ++lane) {
    const size_t slice_begin = at;
    layout.chunks.emplace_back();
    for (size_t owner = 0; owner < parts.size(); ++owner) {
      const ByteRange share = Part(parts[owner], element_size, num_lanes, lane);
      TensorView view;
      view.num_bytes = share.size();
      view.output = static_cast<char*>(tensor.output) + share.begin;
      view.input = view.output;
      if (owner == rank) {
        view.input = static_cast<const char*>(tensor.input) + (share.begin - parts[rank].begin);
      }
      if (share.size() > 0) views.push_back(view);
      layout.chunks.back().push_back({at, at + share.size()});
      at += share.size();
    }
    layout.slices.push_back({slice_begin, at});
  }
  layout.buffers = Buffers(std::move(views));
  return layout;
}

}  // namespace tf_libra
