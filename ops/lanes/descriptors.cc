#include "ops/lanes/descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace tf_libra {
namespace {

// Other threads open files, too, while ranks connect.
constexpr rlim_t kSpare = 16;

// An upper bound where /proc cannot be read, as without a descriptor left for that.
rlim_t NumOpen(rlim_t limit) {
  rlim_t count = 0;
  if (DIR* const folder = opendir("/proc/self/fd")) {
    while (readdir(folder) != nullptr) ++count;
    closedir(folder);
    return count - 3;  // ".", "..", and the folder itself
  }
  const int most = static_cast<int>(std::min<rlim_t>(limit, 1 << 16));
  for (int fd = 0; fd < most; ++fd) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

// The commands for this number, where jobs are started.
std::string HowToRaise(rlim_t needed) {
  const std::string number = std::to_string(needed);
  return "raise the hard limit, by `ulimit -n " + number +
         "` before the job starts, nofile in /etc/security/limits.conf, LimitNOFILE= of systemd or "
         "--ulimit nofile=" +
         number + " of a container";
}

}  // namespace

Status ReserveDescriptors(int count, const std::string& what) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return Status();  // the calls themselves will tell
  const rlim_t open = NumOpen(limit.rlim_cur);
  const rlim_t needed = open + static_cast<rlim_t>(count);
  if (needed + kSpare <= limit.rlim_cur) return Status();
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (needed <= limit.rlim_cur) return Status();
  return Status(StatusCode::kResourceExhausted,
                what + " needs " + std::to_string(count) + " file descriptors; " +
                    std::to_string(open) + " are open, and this process may have " +
                    std::to_string(limit.rlim_cur) + ": " + HowToRaise(needed + kSpare) +
                    ", or ask for fewer threads");
}

bool IsOutOfDescriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

Status OutOfDescriptors(const std::string& call, int error) {
  std::string text = call + ": " + ErrnoText(error);
  rlimit limit;
  if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    text += "; this process may have " + std::to_string(limit.rlim_cur) +
            " file descriptors: " + HowToRaise(2 * limit.rlim_cur);
  }
  return Status(StatusCode::kResourceExhausted, std::move(text));
}

Status SystemError(StatusCode code, const std::string& what) {
  const int error = errno;
  if (IsOutOfDescriptors(error)) return OutOfDescriptors(what, error);
  return Status(code, what + ": " + ErrnoText(error));
}

Status TakeDescriptor(const char* call, int fd, Socket* descriptor) {
  if (fd < 0) return OutOfDescriptors(call, errno);
  *descriptor = Socket(fd);
  return Status();
}

}  // namespace tf_libra
