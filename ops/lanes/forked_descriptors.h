// Descriptors that a forked child closes: a copy that stays open in it would hide from peers that
// this process has ended.
#ifndef TF_LIBRA_OPS_LANES_FORKED_DESCRIPTORS_H_
#define TF_LIBRA_OPS_LANES_FORKED_DESCRIPTORS_H_

namespace tf_libra {

// Registers a descriptor; a negative one is ignored.
void OwnDescriptor(int fd);
// Returns whether it was registered: in a forked child the number may belong to another file.
bool DisownDescriptor(int fd);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_FORKED_DESCRIPTORS_H_
