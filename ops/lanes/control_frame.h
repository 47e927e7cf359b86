// Wire format of the control plane (control_plane.h).
#ifndef TF_LIBRA_OPS_LANES_CONTROL_FRAME_H_
#define TF_LIBRA_OPS_LANES_CONTROL_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/lanes/status.h"
#include "ops/lanes/tree.h"

namespace tf_libra {

struct ControlHeader {
  enum class Kind : uint32_t {
    kData = 1,
    kAbort = 2,  // with the reason of its origin
    kGone = 3,   // by a neighbour of its origin, with what there is to say of that
    kProbe = 4,  // to its target, which is to answer
    kAlive = 5,  // answers a kProbe of its target
  };
  static constexpr uint32_t kMagic = 0x4442494cu;
  static constexpr int32_t kAll = -1;

  uint32_t magic = 0;
  uint32_t kind = 0;
  uint32_t num_bytes = 0;
  int32_t origin = 0;
  int32_t target = 0;  // or kAll

  bool Is(Kind one) const { return kind == static_cast<uint32_t>(one); }
};
static_assert(sizeof(ControlHeader) == 20, "the header goes over the wire as it is");

// A message of the control plane to all ranks, or to one.
struct ControlFrame {
  // Limits of a rank's message, and of the reason why a rank is gone or gives up.
  static constexpr uint32_t kMaxDataBytes = 64u << 20;
  static constexpr uint32_t kMaxWordsBytes = 4096;
  // Memory of a frame, its pointers, and the queue in which it waits.
  static constexpr size_t kFrameOverhead = 128;

  ControlHeader header;
  std::string bytes;  // header included

  // Memory of a waiting frame; at least that of a frame without a text.
  size_t memory_bytes() const { return kFrameOverhead + bytes.size(); }
  std::string text() const { return bytes.substr(sizeof(ControlHeader)); }
};

std::shared_ptr<const ControlFrame> MakeControlFrame(ControlHeader::Kind kind, int origin,
                                                     int target, const std::string& text);

// InvalidArgument: more than kMaxDataBytes.
Status CheckControlData(const std::string& text);

// FailedPrecondition: no rank of the tree sends this to its rank by way of this neighbour. Nothing
// comes from behind another one, or goes back to where it came from, and no size is more than may
// be.
Status CheckControlHeader(const ControlHeader& header, const Tree& tree, int neighbour);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_CONTROL_FRAME_H_
