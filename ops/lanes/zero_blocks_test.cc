#include "ops/lanes/zero_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/engine_testing.h"
#include "ops/lanes/hosts_testing.h"
#include "ops/lanes/testing.h"

namespace tf_libra::zero_blocks_test {
namespace {

using testing::Operation;

using Bytes = std::vector<char>;
using Random = std::mt19937;
using Side = OutgoingSegments::Side;

// Sizes around those of a block, of the least range that has segments, and of a mixed segment.
std::vector<size_t> Sizes() {
  std::vector<size_t> sizes = {0, 1, 3'000'001};
  for (const size_t edge : {kZeroBlockBytes, kLeastSegmentedBytes, kMixedSegmentBytes,
                            2 * kMixedSegmentBytes, kMixedSegmentBytes + kZeroBlockBytes}) {
    for (const size_t size : {edge - 1, edge, edge + 1}) sizes.push_back(size);
  }
  return sizes;
}

// Runs of zeros, and of other bytes, of all lengths.
Bytes Patches(size_t size, Random* random) {
  Bytes bytes(size);
  for (size_t at = 0; at < size;) {
    const size_t limit = size_t{1} << (*random)() % 20;
    const size_t end = std::min(size, at + 1 + (*random)() % limit);
    const bool is_zero = (*random)() % 2 == 0;
    for (; at < end; ++at) bytes[at] = is_zero ? '\0' : static_cast<char>((*random)() | 1);
  }
  return bytes;
}

struct Sent {
  std::string wire;
  size_t num_omitted = 0;
};

// All of a range, of which more and more is known, a few bytes at a time.
Sent Send(const Bytes& bytes, bool omits_zeros, Random* random) {
  const Buffers buffers({{bytes.data(), nullptr, bytes.size()}});
  OutgoingSegments segments;
  Sent sent;
  for (size_t at = 0, ready = 0; at < bytes.size();) {
    ready = std::min(bytes.size(), ready + (*random)() % (2 * kMixedSegmentBytes));
    segments.Begin(buffers, Side::kInputs, {0, bytes.size()}, at, ready, omits_zeros);
    std::string next(segments.header_rest(), segments.header_left());
    size_t run = at;
    for (size_t end; run < std::min(ready, segments.current().end); run = end) {
      end = std::min({segments.current().RunEnd(run), ready, segments.current().end});
      if (segments.current().Travels(run)) next.append(&bytes[run], end - run);
    }
    size_t count = std::min<size_t>(next.size(), (*random)() % (2 * kMixedSegmentBytes));
    sent.wire += next.substr(0, count);
    sent.num_omitted += segments.Advance(ready, &at, &count);
    CHECK_EQ(count, 0u);
  }
  return sent;
}

// Returns whether the whole range has come.
bool Receive(const std::string& wire, size_t size, Random* random, Bytes* bytes) {
  bytes->assign(size, '\x55');
  IncomingSegments segments;
  segments.Begin(size);
  size_t at = 0, limit = 0, next = 0;
  const auto fill = [bytes](size_t begin, size_t end) {
    std::fill(bytes->begin() + begin, bytes->begin() + end, '\0');
  };
  while (at < size || limit < size) {
    limit = std::min(size, limit + (*random)() % kMixedSegmentBytes);
    if (!segments.Advance(limit, &at, 0, fill)) return false;
    const size_t of_segment = std::min({limit, segments.current().end,
                                        at < size ? segments.current().RunEnd(at) : size}) -
                              at;
    const bool travels = of_segment > 0 && segments.current().Travels(at);
    const size_t most = travels ? of_segment : 0;
    const size_t header = at + most == segments.current().end ? segments.header_left() : 0;
    const size_t count = std::min<size_t>((*random)() % (2 * kMixedSegmentBytes), most + header);
    if (wire.size() - next < count) return false;
    std::memcpy(bytes->data() + at, wire.data() + next, std::min(count, most));
    if (count > most) std::memcpy(segments.header_rest(), wire.data() + next + most, count - most);
    next += count;
    if (!segments.Advance(limit, &at, count, fill)) return false;
  }
  return next == wire.size();
}

TEST_CASE("RangesArriveAsTheyWere") {
  Random random(1);
  for (const size_t size : Sizes()) {
    for (int round = 0; round < 6; ++round) {
      Bytes bytes = Patches(size, &random), received;
      if (round == 0) std::fill(bytes.begin(), bytes.end(), '\0');
      if (round == 1) std::fill(bytes.begin(), bytes.end(), '\x80');
      const Sent sent = Send(bytes, /*omits_zeros=*/round != 2, &random);
      CHECK(Receive(sent.wire, size, &random, &received));
      CHECK(received == bytes);
      if (round == 1 || round == 2 || size < kLeastSegmentedBytes) CHECK_EQ(sent.num_omitted, 0u);
      if (round == 0 && size >= kLeastSegmentedBytes) CHECK_EQ(sent.num_omitted, size);
    }
  }
}

// How many bytes of headers go with how many others.
size_t HeaderBytes(const Buffers& buffers, size_t* num_omitted) {
  OutgoingSegments segments;
  size_t headers = 0;
  const size_t size = buffers.num_bytes();
  for (size_t at = 0; at < size;) {
    segments.Begin(buffers, Side::kInputs, {0, size}, at, size, true);
    headers += segments.header_left();
    size_t all = SIZE_MAX;
    *num_omitted += segments.Advance(size, &at, &all);
  }
  return headers;
}

// Without zeros a look becomes rare; a large tensor is looked at all the same.
TEST_CASE("LooksAreRareWithoutZeros") {
  constexpr size_t kSize = 32 << 20;
  const Bytes full(kSize, '\1'), empty(kSize / 8);
  size_t num_omitted = 0;
  CHECK(HeaderBytes(Buffers({{full.data(), nullptr, kSize}}), &num_omitted) <=
        32 * sizeof(SegmentHeader));
  CHECK_EQ(num_omitted, 0u);
  HeaderBytes(Buffers({{full.data(), nullptr, kSize}, {empty.data(), nullptr, empty.size()}}),
              &num_omitted);
  CHECK(num_omitted >= empty.size() - kMixedSegmentBytes);
}

// Reads a range as its segments say, in the simplest way. Returns false if one cannot be, or if
// there are fewer or more bytes.
bool ReadSimply(const std::string& wire, Bytes* bytes) {
  size_t next = 0;
  for (size_t at = 0; at < bytes->size();) {
    SegmentHeader header;
    if (wire.size() - next < sizeof(header)) return false;
    std::memcpy(&header, wire.data() + next, sizeof(header));
    next += sizeof(header);
    const size_t size = header.num_bytes;
    const bool is_mixed = header.kind == SegmentKind::kMixed;
    if (header.kind > SegmentKind::kMixed || size == 0 || size > bytes->size() - at) return false;
    if (is_mixed && size > kMixedSegmentBytes) return false;
    std::vector<bool> travels(64 * header.travels.size());
    for (size_t block = 0; block < travels.size(); ++block) {
      travels[block] = (header.travels[block / 64] >> (block % 64) & 1) != 0;
      if (travels[block] && (!is_mixed || block * kZeroBlockBytes >= size)) return false;
    }
    for (size_t i = 0; i < size; ++i, ++at) {
      const bool is_sent = is_mixed ? travels[i / kZeroBlockBytes] : header.kind != SegmentKind{};
      if (is_sent && next == wire.size()) return false;
      (*bytes)[at] = is_sent ? wire[next++] : '\0';
    }
  }
  return next == wire.size();
}

// Segments of a range of so many bytes, of which one in so many has a header that cannot be.
std::string AnySegments(size_t size, int one_in, Random* random) {
  std::string wire;
  for (size_t at = 0; at < size;) {
    SegmentHeader header;
    const auto kind = static_cast<uint32_t>((*random)() % 3);
    std::memcpy(&header.kind, &kind, sizeof(kind));
    const size_t most = kind == 2 ? std::min(size - at, kMixedSegmentBytes) : size - at;
    const size_t edges[] = {1, kZeroBlockBytes, kZeroBlockBytes + 1, 64 * kZeroBlockBytes, most};
    size_t length = std::min(most, edges[(*random)() % std::size(edges)]);
    const size_t num_blocks = (length + kZeroBlockBytes - 1) / kZeroBlockBytes;
    size_t num_sent = kind == 1 ? length : 0;
    for (size_t block = 0; kind == 2 && block < num_blocks; ++block) {
      if ((*random)() % 2 == 0) continue;
      header.travels[block / 64] |= uint64_t{1} << (block % 64);
      num_sent += std::min(kZeroBlockBytes, length - block * kZeroBlockBytes);
    }
    header.num_bytes = static_cast<uint32_t>(length);
    at += length;
    if ((*random)() % one_in == 0) {
      const uint32_t numbers[] = {0, 3, 0x7fffffff, 0x80000000, 0xfffffe00, 0xffffffff};
      const uint32_t number = numbers[(*random)() % std::size(numbers)];
      switch ((*random)() % 4) {
        case 0:
          header.num_bytes = number;
          break;
        case 1:
          std::memcpy(&header.kind, &number, sizeof(number));
          break;
        case 2:
          header.travels[(*random)() % header.travels.size()] ^= uint64_t{1} << ((*random)() % 64);
          break;
        default:
          num_sent += (*random)() % 3 - 1;
      }
    }
    wire.append(reinterpret_cast<const char*>(&header), sizeof(header));
    for (; num_sent > 0 && num_sent <= size; --num_sent) {
      wire.push_back(static_cast<char>((*random)()));
    }
  }
  return wire;
}

// A receiver takes the segments that a simple reader takes, with the same bytes.
TEST_CASE("AnySegmentsAreReadAsTheySay") {
  Random random(5);
  int num_taken = 0, num_left = 0;
  for (int round = 0; round < 1000; ++round) {
    const size_t size = kLeastSegmentedBytes + random() % (1 << (10 + round % 9));
    const std::string wire = AnySegments(size, round % 2 == 0 ? 1'000'000 : 2, &random);
    Bytes expected(size), received;
    const bool can_be = ReadSimply(wire, &expected);
    CHECK_EQ(Receive(wire, size, &random, &received), can_be);
    if (can_be) CHECK(received == expected);
    ++(can_be ? num_taken : num_left);
  }
  CHECK(num_taken > 200);
  CHECK(num_left > 200);
}

// What no sender sends: the receiver takes none of it.
TEST_CASE("HeadersThatCannotBe") {
  constexpr size_t kSize = 256 * 1024;
  struct Case {
    uint32_t kind;
    uint32_t num_bytes;
    uint64_t first_word;
    uint64_t last_word;
    bool can_be;
  };
  const Case cases[] = {
      {2, 128 * 1024, 5, 0, true},  {2, 128 * 1024 + 1, 5, 0, false},
      {2, 512 * 3, 7, 0, true},     {2, 512 * 2 + 1, 7, 0, true},
      {2, 512 * 2, 7, 0, false},    {2, 512 * 3, 7, 1, false},
      {1, kSize, 0, 0, true},       {1, kSize + 1, 0, 0, false},
      {1, 1024, 1, 0, false},       {1, 0, 0, 0, false},
      {0, kSize, 0, 0, true},       {0, 0, 0, 0, false},
      {0, 0xffffffff, 0, 0, false}, {0, 1024, 0, 1, false},
      {3, 1024, 0, 0, false},       {0xffffffff, 1024, 0, 0, false},
  };
  for (const Case& one : cases) {
    IncomingSegments segments;
    segments.Begin(kSize);
    SegmentHeader header;
    std::memcpy(&header.kind, &one.kind, sizeof(one.kind));
    header.num_bytes = one.num_bytes;
    header.travels.front() = one.first_word;
    header.travels.back() = one.last_word;
    CHECK_EQ(segments.header_left(), sizeof(header));
    std::memcpy(segments.header_rest(), &header, sizeof(header));
    size_t at = 0, filled = 0;
    const bool taken = segments.Advance(kSize, &at, sizeof(header), [&](size_t begin, size_t end) {
      CHECK(end <= kSize);
      filled += end - begin;
    });
    CHECK_EQ(taken, one.can_be);
    if (!taken) CHECK_EQ(at + filled, 0u);
  }
}

// Zeros of both signs, and all that is special, in runs of all lengths; the rest as gradients are.
Bytes Specials(const Operation& operation, int rank) {
  Bytes values = testing::Gradients(operation, rank, /*seed=*/0);
  const size_t element = ElementSize(operation.type);
  uint64_t denormal = 1, negative = 0, infinity = 0, nan = 0;
  const float infinite = INFINITY;
  switch (operation.type) {
    case ElementType::kFloat16:
      infinity = 0x7c00;
      break;
    case ElementType::kBFloat16:
      infinity = 0x7f80;
      break;
    case ElementType::kFloat32:
      std::memcpy(&infinity, &infinite, sizeof(infinite));
      break;
    default:
      infinity = 0x7ff0000000000000;
  }
  nan = infinity | (infinity >> 1);
  negative = uint64_t{1} << (8 * element - 1);
  const uint64_t patterns[] = {0, 0, 0, 0, negative, denormal, infinity, nan};
  Random random(static_cast<uint32_t>(rank));
  for (size_t at = 0; at < operation.num_elements();) {
    const size_t limit = size_t{1} << random() % 16;
    const size_t end = std::min(operation.num_elements(), at + 1 + random() % limit);
    const uint64_t pattern = patterns[random() % std::size(patterns)];
    const bool changes = random() % 8 > 0;
    for (; at < end; ++at) {
      if (changes) std::memcpy(&values[at * element], &pattern, element);
    }
  }
  return values;
}

Status AllReduce(LaneEngine* engine, const Operation& operation, Bytes* values) {
  AllReduceRequest request;
  request.operation = operation.Info();
  request.element_type = operation.type;
  char* at = values->data();
  for (const size_t count : operation.counts) {
    const size_t size = count * ElementSize(operation.type);
    request.tensors.push_back({at, at, size});
    at += size;
  }
  std::promise<Status> end;
  request.done = [&end](const Status& status) { end.set_value(status); };
  engine->AllReduce(std::move(request));
  return end.get_future().get();
}

std::vector<Operation> Operations() {
  std::vector<Operation> operations;
  for (const size_t count : {size_t{5'000}, size_t{70'001}, size_t{300'003}}) {
    for (const ElementType type : {ElementType::kFloat16, ElementType::kBFloat16,
                                   ElementType::kFloat32, ElementType::kFloat64}) {
      Operation operation;
      operation.counts = {count / 5, 0, count - count / 5};
      operation.type = type;
      operation.num_threads = 1 + static_cast<int>(count % 2);
      operation.first_lane = 2 - operation.num_threads;
      operation.reduction = count % 3 == 0 ? Reduction::kSum : Reduction::kAverage;
      operations.push_back(operation);
    }
    operations.push_back(operations.back());
    operations.back().type = ElementType::kFloat32;
    operations.back().wire_type = ElementType::kBFloat16;
  }
  return operations;
}

// Bits are those that come without leaving anything out, on every rank. Each rank decides alone.
void CheckEqualBits(std::vector<Mesh> meshes) {
  const int world_size = static_cast<int>(meshes.size());
  const testing::Engines engines = testing::MakeEngines(std::move(meshes));
  for (const Operation& operation : Operations()) {
    std::vector<Bytes> dense(world_size), sparse(world_size);
    testing::OnEveryRank(world_size, [&](int rank) {
      LaneEngine* const engine = engines[rank].get();
      dense[rank] = sparse[rank] = Specials(operation, rank);
      engine->SetOmitsZeros(false);
      CHECK_EQ(AllReduce(engine, operation, &dense[rank]), testing::IsOk());
      engine->SetOmitsZeros(rank != 2);
      CHECK_EQ(AllReduce(engine, operation, &sparse[rank]), testing::IsOk());
    });
    for (int rank = 0; rank < world_size; ++rank) {
      CHECK(sparse[rank] == dense[0]);
      CHECK(dense[rank] == dense[0]);
    }
  }
}

TEST_CASE("BitsAreThoseOfAllBytes") {
  testing::OverAll();
  for (int world_size = 1; world_size <= 5; ++world_size) {
    CheckEqualBits(testing::ConnectAll(world_size, 2));
  }
}

TEST_CASE("BitsAreThoseOfAllBytesOnTwoLevels") {
  CheckEqualBits(testing::ConnectHosts(testing::Hosts(2, 2), 2));
  CheckEqualBits(testing::ConnectHosts(testing::Hosts(3, 2, /*in_turns=*/true), 2));
}

// The sum of a rank's zero and another's negative zero is a zero, and so is it without the former.
TEST_CASE("NegativeZerosAreContent") {
  testing::OverAll();
  const testing::Engines engines = testing::MakeEngines(testing::ConnectAll(2, 1));
  Operation operation;
  operation.counts = {100'000};
  for (const bool both : {false, true}) {
    testing::OnEveryRank(2, [&](int rank) {
      std::vector<float> values(operation.counts[0], rank == 1 || both ? -0.0f : 0.0f);
      Bytes bytes(values.size() * sizeof(float));
      std::memcpy(bytes.data(), values.data(), bytes.size());
      CHECK_EQ(AllReduce(engines[rank].get(), operation, &bytes), testing::IsOk());
      std::memcpy(values.data(), bytes.data(), bytes.size());
      for (const float value : values) {
        if (value != 0 || std::signbit(value) != both) FAIL_CHECK(value);
      }
    });
  }
}

}  // namespace
}  // namespace tf_libra::zero_blocks_test
