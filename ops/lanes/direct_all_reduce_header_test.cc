#include "ops/lanes/direct_all_reduce_header.h"

#include <string>

#include "ops/lanes/testing.h"

namespace tf_libra::direct_all_reduce_header_test {
namespace {

TEST_CASE("TheFirstDifferenceIsNamed") {
  struct Case {
    const char* expected;
    void (*change)(ExchangeHeader*);
  };
  // Each is checked before the cases above it.
  const Case cases[] = {
      {"is in step 8, this rank in step -1", [](ExchangeHeader* header) { header->step = 8; }},
      {"has another plan than this rank, and is in step 8",
       [](ExchangeHeader* header) { header->digest ^= 1; }},
      {"by another reduction", [](ExchangeHeader* header) { header->reduction = 1; }},
      {"sends elements as float64, this rank as float16",
       [](ExchangeHeader* header) { header->element_type = 3; }},
      {"uses 4 thread(s), this rank 0", [](ExchangeHeader* header) { header->num_threads = 4; }},
      {"reduces 44 bytes, this rank 0", [](ExchangeHeader* header) { header->num_bytes = 44; }},
      {"reduces group 3, this rank group -1", [](ExchangeHeader* header) { header->group = 3; }},
      {"is at all-reduce 6, this rank at 0", [](ExchangeHeader* header) { header->sequence = 6; }},
      {"sent something that is no all-reduce", [](ExchangeHeader* header) { header->magic ^= 1; }},
  };
  ExchangeHeader theirs;
  CHECK_EQ(DifferenceOf(theirs, ExchangeHeader()), std::string());
  for (const Case& one : cases) {
    one.change(&theirs);
    CHECK_EQ(DifferenceOf(theirs, ExchangeHeader()), testing::Contains(one.expected));
  }
}

// In a ring it lies as every type of elements wants what follows, wherever the ring is.
TEST_CASE("HeadersEndAtMultiplesOfTheirRoom") {
  for (uint64_t position = 0; position < 3 * kHeaderRoom; ++position) {
    const size_t bytes = BytesToHeaderEnd(position);
    CHECK_EQ((position + bytes) % kHeaderRoom, 0u);
    CHECK((bytes >= kHeaderRoom && bytes < 2 * kHeaderRoom));
  }
}

}  // namespace
}  // namespace tf_libra::direct_all_reduce_header_test
