// Keeps exceptions inside the plugin: its callers are C, where an exception would end the process.
#ifndef TF_LIBRA_OPS_NCCL_TUNER_GUARDED_H_
#define TF_LIBRA_OPS_NCCL_TUNER_GUARDED_H_

#include <exception>
#include <new>

namespace tf_libra {
namespace nccl {

// Returns the result of `body`, or that of `caught`, which receives the reason of an exception and
// throws nothing.
template <typename Body, typename Caught>
auto Guarded(Body body, Caught caught) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return caught("out of memory");
  } catch (const std::exception& error) {
    return caught(error.what());
  } catch (...) {
    return caught("an exception of unknown type");
  }
}

}  // namespace nccl
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_NCCL_TUNER_GUARDED_H_
