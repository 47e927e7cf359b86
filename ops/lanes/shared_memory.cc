#include "ops/lanes/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <new>
#include <string>
#include <utility>

namespace tf_libra {
namespace {

constexpr int kRings = 4;
// The state and marks of all rings. A page of the largest kind that machines have: what is mapped
// by itself begins at such a one.
constexpr size_t kStateBytes = 1 << 16;
constexpr size_t kCacheLineBytes = 64;
// Sealed: a file that shrank would end every process that has mapped it.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

size_t FileBytes(size_t capacity) { return kStateBytes + kRings * capacity; }
size_t MappedBytes(size_t capacity) { return kStateBytes + 2 * kRings * capacity; }

// Bytes of the marks of a ring: both sides write marks, those of other rings in other lines.
size_t MarksBytes(size_t capacity) {
  const size_t num_lines = (RingEnd::NumMarks(capacity) + kCacheLineBytes - 1) / kCacheLineBytes;
  return num_lines * kCacheLineBytes;
}

Status Refused(const char* call, int error) {
  return Status(StatusCode::kUnavailable, std::string(call) + ": " + ErrnoText(error));
}

bool MapAt(char* address, const Socket& file, size_t offset, size_t size) {
  return mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.fd(),
              static_cast<off_t>(offset)) != MAP_FAILED;
}

}  // namespace

RingEnd::RingEnd(bool reads, RingState* state, uint8_t* marks, char* bytes, size_t capacity)
    : reads_(reads),
      marks_(marks),
      bytes_(bytes),
      capacity_(capacity),
      mine_(reads ? &state->read : &state->written),
      theirs_(reads ? &state->written : &state->read),
      wanted_by_me_(reads ? &state->wanted_written : &state->wanted_read),
      wanted_by_them_(reads ? &state->wanted_read : &state->wanted_written) {}

bool RingEnd::Look(size_t* num_bytes) {
  const uint64_t theirs = *theirs_;
  const uint64_t in_ring = reads_ ? theirs - position_ : position_ - theirs;
  if (in_ring > capacity_ || theirs < seen_) return false;
  seen_ = noticed_ = theirs;
  *num_bytes = static_cast<size_t>(reads_ ? in_ring : capacity_ - in_ring);
  return true;
}

bool RingEnd::HasMoved() {
  const uint64_t theirs = *theirs_;
  return std::exchange(noticed_, theirs) != theirs;
}

// The waiting side publishes its position, checks again, and sleeps. The advancing side publishes
// its position, and checks for a waiting side. All four accesses are sequentially consistent, so
// one of the two sees the other.
bool RingEnd::Advance(size_t num_bytes) {
  AdvanceAhead(num_bytes);
  uint64_t wanted = *wanted_by_them_;
  // If the other side has just changed what it waits for, it looks again, and sees the position.
  return wanted <= position_ && wanted_by_them_->compare_exchange_strong(wanted, RingState::kNever);
}

void RingEnd::AdvanceAhead(size_t num_bytes) {
  position_ += num_bytes;
  *mine_ = position_;
}

void RingEnd::Await(size_t num_bytes) {
  // A writer finds so much room when all is read but what the rest of the ring holds.
  *wanted_by_me_ = position_ + num_bytes - (reads_ ? 0 : capacity_);
}

void RingEnd::AwaitNothing() { *wanted_by_me_ = RingState::kNever; }

RingEnd SharedMemory::EndOf(int ring, bool reads, char* base, size_t capacity) {
  uint8_t* const marks = reinterpret_cast<uint8_t*>(base + kRings * sizeof(RingState));
  return RingEnd(reads, reinterpret_cast<RingState*>(base) + ring,
                 marks + ring * MarksBytes(capacity), base + kStateBytes + 2 * ring * capacity,
                 capacity);
}

// Rings 0 and 1 lead away from the maker.
SharedMemory::SharedMemory(char* base, size_t capacity, bool maker)
    : base_(base),
      incoming_parts_(EndOf(maker ? 2 : 0, true, base, capacity)),
      incoming_sums_(EndOf(maker ? 3 : 1, true, base, capacity)),
      outgoing_parts_(EndOf(maker ? 0 : 2, false, base, capacity)),
      outgoing_sums_(EndOf(maker ? 1 : 3, false, base, capacity)) {}

SharedMemory::~SharedMemory() { munmap(base_, MappedBytes(incoming_parts_.capacity())); }

void SharedMemory::AwaitNothing() {
  for (RingEnd* const end :
       {&incoming_parts_, &incoming_sums_, &outgoing_parts_, &outgoing_sums_}) {
    end->AwaitNothing();
  }
}

Status SharedMemory::Map(const Socket& file, size_t capacity, bool maker,
                         std::unique_ptr<SharedMemory>* memory) {
  assert(kRings * (sizeof(RingState) + MarksBytes(capacity)) <= kStateBytes);
  void* const room = mmap(nullptr, MappedBytes(capacity), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return Refused("mmap", errno);
  char* const base = static_cast<char*>(room);
  bool mapped = MapAt(base, file, 0, kStateBytes);
  for (int copy = 0; copy < 2 * kRings && mapped; ++copy) {
    mapped = MapAt(base + kStateBytes + copy * capacity, file, kStateBytes + copy / 2 * capacity,
                   capacity);
  }
  if (!mapped) {
    const int error = errno;
    munmap(base, MappedBytes(capacity));
    return Refused("mmap", error);
  }
  if (maker) {
    for (int i = 0; i < kRings; ++i) {
      RingState* const state = new (base + i * sizeof(RingState)) RingState;
      state->written = state->read = 0;
      state->wanted_read = state->wanted_written = RingState::kNever;
    }
  }
  memory->reset(new (std::nothrow) SharedMemory(base, capacity, maker));
  if (*memory != nullptr) return Status();
  munmap(base, MappedBytes(capacity));
  return Refused("mmap", ENOMEM);
}

Status SharedMemory::Make(size_t capacity, std::unique_ptr<SharedMemory>* memory, Socket* result) {
  Socket file(memfd_create("tf_libra", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return Refused("memfd_create", errno);
  if (ftruncate(file.fd(), static_cast<off_t>(FileBytes(capacity))) != 0) {
    return Refused("ftruncate", errno);
  }
  // Pages that are not to be had are an error here, and a signal later.
  int error = EINTR;
  // A signal ends it, and takes back what it has done.
  for (int tries = 0; error == EINTR && tries < 100; ++tries) {
    error = posix_fallocate(file.fd(), 0, static_cast<off_t>(FileBytes(capacity)));
  }
  if (error != 0) return Refused("fallocate", error);
  if (fcntl(file.fd(), F_ADD_SEALS, kSeals) != 0) return Refused("fcntl", errno);
  if (Status status = Map(file, capacity, true, memory); !status.ok()) return status;
  *result = std::move(file);
  return Status();
}

Status SharedMemory::Take(const Socket& file, size_t capacity,
                          std::unique_ptr<SharedMemory>* memory) {
  struct stat found{};
  if (fstat(file.fd(), &found) != 0) return Refused("fstat", errno);
  const int seals = fcntl(file.fd(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || (seals & F_SEAL_WRITE) != 0 ||
      static_cast<uint64_t>(found.st_size) != FileBytes(capacity)) {
    return Status(StatusCode::kFailedPrecondition, "the file of shared memory is not as agreed");
  }
  return Map(file, capacity, false, memory);
}

}  // namespace tf_libra
