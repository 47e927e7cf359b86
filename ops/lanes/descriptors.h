// Limit of open file descriptors, and errors of calls that exceed it.
#ifndef TF_LIBRA_OPS_LANES_DESCRIPTORS_H_
#define TF_LIBRA_OPS_LANES_DESCRIPTORS_H_

#include <string>

#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// Sees to it that `count` more can be opened: where the soft limit of this process does not suffice
// it is raised to the hard one. ResourceExhausted where that does not suffice either: says how many
// are needed for `what`, what the limit is, and how to raise it.
Status ReserveDescriptors(int count, const std::string& what);

// Returns whether an error of a system call means that there are no descriptors, or is no memory
// for them: trying again would not help.
bool IsOutOfDescriptors(int error);

// The error of `call`, with what the limit is where `error` is EMFILE.
Status OutOfDescriptors(const std::string& call, int error);

// The error of a call that has just failed: ResourceExhausted if it found no descriptor, else
// `code`.
Status SystemError(StatusCode code, const std::string& what);

// Owns from here on what a system call has just returned. ResourceExhausted: it is no descriptor.
Status TakeDescriptor(const char* call, int fd, Socket* descriptor);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_DESCRIPTORS_H_
