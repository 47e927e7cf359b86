// Transfers between one rank of a direct all-reduce (direct_all_reduce.h) and its peers: a header,
// parts and sums, over a socket or through shared memory. The exchange decides the turns of the
// peers and sums what has arrived.
#ifndef TF_LIBRA_OPS_LANES_DIRECT_ALL_REDUCE_IO_H_
#define TF_LIBRA_OPS_LANES_DIRECT_ALL_REDUCE_IO_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/lanes/buffers.h"
#include "ops/lanes/direct_all_reduce.h"
#include "ops/lanes/direct_all_reduce_header.h"
#include "ops/lanes/shared_memory.h"
#include "ops/lanes/shm_ring_io.h"
#include "ops/lanes/status.h"
#include "ops/lanes/zero_blocks.h"
#include "ops/lanes/zero_marks.h"

namespace tf_libra {

// State of the exchange with one peer. Each direction carries a header, then the part of the
// receiver's chunk, then the sender's own chunk, summed, both without their blocks of zeros
// (zero_blocks.h, zero_marks.h).
struct ExchangePeer {
  int index = 0;
  int rank = 0;  // for messages
  int fd = -1;
  SharedMemory* memory = nullptr;
  // Over a socket: nothing moved, and nothing that it depends on has changed.
  bool rests = false;
  // Over a socket: the last call found nothing, or no room, as would another without news of the
  // peer.
  bool is_drained = false, is_full = false;
  bool is_through = false;
  ByteRange chunk;  // owned by this peer
  size_t header_sent = 0;
  size_t part_sent = 0;  // of `chunk`
  size_t sum_sent = 0;   // of the own chunk
  ExchangeHeader header;
  size_t header_received = 0;
  size_t part_received = 0;  // of the own chunk
  size_t sum_received = 0;   // of `chunk`
  // Over a socket.
  OutgoingSegments part_out, sum_out;
  IncomingSegments part_in, sum_in;
  // In memory: of each block of `chunk`, whether the part of it was sent as zeros.
  std::vector<bool> zero_parts;
  char* block = nullptr;  // holds a block of the own chunk from `summed` on; none with memory
};

class ExchangeIo {
 public:
  // Parts of the own chunk are summed a block at a time, while they are in the cache: those of all
  // peers together. Powers of two, as are the sizes of rings.
  static constexpr size_t kMaxBlockBytes = 128 * 1024;

  // `options` outlive this. Of the own chunk a block at a time is summed.
  ExchangeIo(const ExchangeOptions& options, ByteRange own_chunk, size_t block_bytes);

  // Move the bytes that can be moved now. kFailed: `result` has the reason.
  Step Receive(ExchangePeer* peer);
  Step Send(ExchangePeer* peer);

  bool SentAll(const ExchangePeer& peer) const;
  bool ReceivedAll(const ExchangePeer& peer) const;
  // Returns whether a part of its block is missing: without every rank's part there is no sum to
  // send.
  bool LacksPart(const ExchangePeer& peer) const;
  // Returns whether this peer may deliver now; over a socket not while its block is full and waits
  // for other ranks.
  bool WantsToReceive(const ExchangePeer& peer) const;
  bool WantsToSend(const ExchangePeer& peer) const;

  // Has a peer that shares memory wake this rank for what it waits for. False: there is something
  // now, or a failure.
  bool AwaitInMemory(const ExchangePeer& peer);

  // Takes off the socket what a peer that shares memory has woken this rank with. False: a failure.
  bool TakeWakes(const ExchangePeer& peer);

  // Bounds of the next block within the own chunk, and the most bytes of a block.
  size_t summed() const { return summed_; }
  size_t block_bytes() const { return block_bytes_; }
  size_t BlockEnd() const;
  // So much of the own chunk is final, and may be sent; what memory held of its parts is free.
  void Summed(size_t end, std::vector<ExchangePeer>* peers);
  // Returns whether a peer has marked its part of the block with byte `at` of the own chunk.
  bool IsPartMarked(const ExchangePeer& peer, size_t at) const;
  // Returns the received bytes of a peer's part from byte `at` of the own chunk on; if it
  // `may_be_zero`, up to the end of the block.
  const char* PartOf(const ExchangePeer& peer, size_t at, bool may_be_zero) const;
  // Writes the sum of the block of the own chunk that begins at `at`, with `input` of this rank,
  // and returns true if all peers have marked their parts, and this rank has zeros. Otherwise, and
  // where rounding errors are kept, it does nothing.
  bool TrySumZeros(const std::vector<ExchangePeer>& peers, size_t at, size_t size,
                   const char* input, char* output);

  Step Fail(StatusCode code, const ExchangePeer& peer, const std::string& what);
  ExchangeResult* result() { return &result_; }

 private:
  static constexpr size_t kMaxRuns = 64;
  // Buffers of one system call.
  struct Runs {
    iovec runs[kMaxRuns];
    size_t count = 0;

    void Add(char* data, size_t size) { runs[count++] = iovec{data, size}; }
  };

  // Begins and adds what comes next of a range that is sent: up to `limit` of it, and `most` bytes.
  // Returns where in the range that ends.
  size_t AddSegment(OutgoingSegments* segments, OutgoingSegments::Side side, ByteRange range,
                    size_t at, size_t limit, size_t most, Runs* runs) const;
  // Takes what has been sent of it off `*sent`.
  void CountSent(OutgoingSegments* segments, size_t limit, size_t* at, size_t* sent);
  // Interprets a system call's result: `bytes` > 0 moved, or errno; zero means that the peer has
  // closed.
  Step Outcome(const ExchangePeer& peer, ssize_t bytes);
  Step SendRuns(ExchangePeer* peer, Runs* runs, size_t* sent);
  Step ReceiveRuns(ExchangePeer* peer, Runs* runs, size_t* received);
  Step ReceivePart(ExchangePeer* peer);
  Step ReceiveSum(ExchangePeer* peer);
  // Receives what comes next of a range of `num_bytes`, up to `limit`, after what of the header is
  // missing. `find_memory(begin, end, visit)` calls `visit(data, size)` for the memory of these
  // bytes.
  template <typename FindMemory>
  Step ReceiveRange(ExchangePeer* peer, IncomingSegments* segments, size_t num_bytes, size_t limit,
                    size_t* at, FindMemory find_memory);
  Step CheckHeader(ExchangePeer* peer);

  // A step in shared memory, whose failure has one cause.
  Step InMemory(const ExchangePeer& peer, Step step);
  // Copies up to a block, in multiples of `grain` but for the end of the range.
  template <typename Copy>
  Step CopyRange(ExchangePeer* peer, RingEnd* end, ByteRange range, size_t limit, size_t grain,
                 size_t* moved, Copy copy);
  // Writes a run of `range`, of `size` bytes from `at` on, to `memory`, without the blocks of which
  // `is_zero(at)` says that they have only zeros.
  template <typename IsZero>
  void WriteRun(const MarkedRange& range, size_t at, size_t size, const char* from, char* memory,
                IsZero is_zero);
  Step SendHeaderInMemory(ExchangePeer* peer);
  Step ReceiveHeaderInMemory(ExchangePeer* peer);
  // Received bytes stay in the ring until they are summed.
  Step ReceivePartInMemory(ExchangePeer* peer);
  Step SendInMemory(ExchangePeer* peer);
  // After the header.
  Step ReceiveInMemory(ExchangePeer* peer);
  // False: there is something now, or a failure.
  bool Await(const ExchangePeer& peer, RingEnd* end, size_t left);

  const ExchangeOptions& options_;
  const ByteRange own_chunk_;
  const size_t block_bytes_;
  const bool has_parts_;  // peers send parts of the own chunk
  const bool counts_memory_;
  size_t summed_ = 0;   // bytes of the own chunk that are final
  size_t arrived_ = 0;  // peers that have sent anything
  // Blocks of the own chunk whose sums are known to have only zeros.
  std::vector<bool> zero_sums_;
  ExchangeResult result_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_DIRECT_ALL_REDUCE_IO_H_
