#include "ops/lanes/forked_descriptors.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <new>

namespace tf_libra {
namespace {

// One bit for each registered descriptor. There are no locks, since another thread may hold them
// when a process forks. Pages beyond the first are allocated for high numbers, and stay.
constexpr int kPageDescriptors = 1 << 12;
struct Page {
  std::atomic<uint64_t> words[kPageDescriptors / 64];
};
Page first_page;
std::atomic<Page*> more_pages[std::numeric_limits<int>::max() / kPageDescriptors];
std::atomic<int> num_pages{1};

// Returns null if there is no page, for example because no memory was left for it.
Page* PageOf(int fd) {
  const int number = fd / kPageDescriptors;
  return number == 0 ? &first_page : more_pages[number - 1].load();
}

Page* MakePageOf(int fd) {
  if (Page* const known = PageOf(fd)) return known;
  const int number = fd / kPageDescriptors;
  Page* const made = new (std::nothrow) Page();
  Page* known = nullptr;
  if (!more_pages[number - 1].compare_exchange_strong(known, made)) {
    delete made;
    return known;
  }
  int most = num_pages;
  while (most <= number && !num_pages.compare_exchange_weak(most, number + 1)) {
  }
  return made;
}

void CloseAllInForkedChild() {
  for (int number = 0; number < num_pages; ++number) {
    const int first = number * kPageDescriptors;
    const Page* const page = PageOf(first);
    if (page == nullptr) continue;
    for (int at = 0; at < kPageDescriptors; ++at) {
      if (at % 64 == 0 && page->words[at / 64] == 0) {
        at += 63;
      } else if (DisownDescriptor(first + at)) {
        close(first + at);
      }
    }
  }
}

}  // namespace

void OwnDescriptor(int fd) {
  static const int registered = pthread_atfork(nullptr, nullptr, CloseAllInForkedChild);
  static_cast<void>(registered);
  if (fd < 0) return;
  Page* const page = MakePageOf(fd);
  if (page != nullptr) page->words[fd % kPageDescriptors / 64] |= uint64_t{1} << (fd % 64);
}

bool DisownDescriptor(int fd) {
  Page* const page = fd < 0 ? nullptr : PageOf(fd);
  if (page == nullptr) return fd >= 0;
  const uint64_t bit = uint64_t{1} << (fd % 64);
  return (page->words[fd % kPageDescriptors / 64].fetch_and(~bit) & bit) != 0;
}

}  // namespace tf_libra
