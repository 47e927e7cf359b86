#include "ops/lanes/control_frame.h"

namespace tf_libra {

std::shared_ptr<const ControlFrame> MakeControlFrame(ControlHeader::Kind kind, int origin,
                                                     int target, const std::string& text) {
  auto frame = std::make_shared<ControlFrame>();
  frame->header = {ControlHeader::kMagic, static_cast<uint32_t>(kind),
                   static_cast<uint32_t>(text.size()), origin, target};
  frame->bytes.reserve(sizeof(ControlHeader) + text.size());
  frame->bytes.assign(reinterpret_cast<const char*>(&frame->header), sizeof(ControlHeader));
  frame->bytes += text;
  return frame;
}

Status CheckControlData(const std::string& text) {
  if (text.size() <= ControlFrame::kMaxDataBytes) return Status();
  return Status(StatusCode::kInvalidArgument,
                "a control message may have " + std::to_string(ControlFrame::kMaxDataBytes) +
                    " bytes at most, not " + std::to_string(text.size()));
}

Status CheckControlHeader(const ControlHeader& header, const Tree& tree, int neighbour) {
  const auto comes_by = [&](int rank) {
    return rank >= 0 && rank < tree.world_size() && tree.Toward(rank) == neighbour;
  };
  bool is_good = header.magic == ControlHeader::kMagic && comes_by(header.origin);
  switch (static_cast<ControlHeader::Kind>(header.kind)) {
    case ControlHeader::Kind::kData:
      is_good = is_good && header.target == ControlHeader::kAll &&
                header.num_bytes <= ControlFrame::kMaxDataBytes;
      break;
    case ControlHeader::Kind::kAbort:
    case ControlHeader::Kind::kGone:
      is_good = is_good && header.target == ControlHeader::kAll &&
                header.num_bytes <= ControlFrame::kMaxWordsBytes;
      break;
    case ControlHeader::Kind::kProbe:
    case ControlHeader::Kind::kAlive:
      is_good = is_good && header.target >= 0 && header.target < tree.world_size() &&
                !comes_by(header.target) && header.num_bytes == 0;
      break;
    default:
      is_good = false;
  }
  if (is_good) return Status();
  return Status(StatusCode::kFailedPrecondition,
                "rank " + std::to_string(neighbour) + " sent something that is no message");
}

}  // namespace tf_libra
