#include "ops/lanes/direct_all_reduce_header.h"

#include <sstream>

#include "ops/lanes/element.h"

namespace tf_libra {
namespace {

const char* NameOf(uint8_t element_type) {
  return ElementName(static_cast<ElementType>(element_type));
}

}  // namespace

std::string DifferenceOf(const ExchangeHeader& theirs, const ExchangeHeader& mine) {
  std::ostringstream what;
  if (theirs.magic != mine.magic) {
    what << "sent something that is no all-reduce";
  } else if (theirs.sequence != mine.sequence) {
    what << "is at all-reduce " << theirs.sequence << ", this rank at " << mine.sequence;
  } else if (theirs.group != mine.group) {
    what << "reduces group " << theirs.group << ", this rank group " << mine.group;
  } else if (theirs.num_bytes != mine.num_bytes) {
    what << "reduces " << theirs.num_bytes << " bytes, this rank " << mine.num_bytes;
  } else if (theirs.num_threads != mine.num_threads) {
    what << "uses " << theirs.num_threads << " thread(s), this rank " << mine.num_threads;
  } else if (theirs.element_type != mine.element_type) {
    what << "sends elements as " << NameOf(theirs.element_type) << ", this rank as "
         << NameOf(mine.element_type) << " (dtype of the tensors, or wire_dtype)";
  } else if (theirs.reduction != mine.reduction) {
    what << "reduces by another reduction than this rank";
  } else if (theirs.digest != mine.digest) {
    what << "reduces other tensors, or of other sizes, shards other updates, or has another plan "
            "than this rank";
  }
  if (theirs.magic != mine.magic || theirs.step == mine.step) return what.str();
  if (what.tellp() > 0) what << ", and ";
  what << "is in step " << theirs.step << ", this rank in step " << mine.step;
  return what.str();
}

}  // namespace tf_libra
