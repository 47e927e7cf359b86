// Wire format between the messages of two ranks (messenger.h).
#ifndef TF_LIBRA_OPS_LANES_FRAME_H_
#define TF_LIBRA_OPS_LANES_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "ops/lanes/status.h"

namespace tf_libra {

struct Frame {
  enum Kind : uint16_t {
    kOffer = 1,    // the sender has this message
    kRequest = 2,  // the receiver wants it; `id` is the receiver's
    // `num_bytes` of a message follow: of the one that kRequest named `id`, or, between ranks that
    // share memory, of the one `in_place` that kOffer named `id`
    kData = 3,
    kConfirm = 4,    // asks for a kConfirmed behind all that was sent before
    kConfirmed = 5,  // all that has been read
    kCredit = 6,     // the receiver of the message named `id` has room for `num_bytes` more
    kDropped = 7,    // the eager bytes of the message that kOffer named `id`: send them again
  };
  static constexpr uint32_t kMagic = 0x4d42494cu;
  static constexpr size_t kMaxTextBytes = 8192;

  uint32_t magic = kMagic;
  uint16_t kind = 0;
  // For kOffer and kRequest, text follows the frame: the message's key, a zero byte, and its
  // content.
  uint16_t num_text_bytes = 0;
  uint64_t id = 0;
  uint64_t num_bytes = 0;
};
static_assert(sizeof(Frame) == 24, "a frame goes over the wire as it is");
inline constexpr size_t kMaxFrameBytes = sizeof(Frame) + Frame::kMaxTextBytes;

// The frame and its text at the beginning of `size` bytes. `length` is that of both together, or 0
// where not all of it is there yet. FailedPrecondition: it is no frame.
Status ReadFrame(const char* bytes, size_t size, Frame* frame, size_t* length);

// As both stand in a text that ReadFrame has found good.
void SplitText(const char* text, size_t size, std::string* key, std::string* content);

// Returns whether a key and a content fit into a frame, and can be separated in it.
bool FitsFrame(const std::string& key, const std::string& content);

// A frame as it is sent, without text.
std::string ToBytes(const Frame& frame);

std::string WithText(Frame frame, const std::string& key, const std::string& content);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_FRAME_H_
