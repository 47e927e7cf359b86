#include "ops/lanes/status.h"

#include <exception>
#include <new>
#include <system_error>

namespace tf_libra {
namespace {

Status Caught(StatusCode code, const char* what, const char* why) noexcept {
  try {
    return Status(code, std::string(what) + ": " + why);
  } catch (...) {
    return Status(code, what);
  }
}

}  // namespace

Status CaughtStatus(const char* what) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return Caught(StatusCode::kResourceExhausted, what, "out of memory");
  } catch (const std::system_error& error) {  // a thread that does not start, above all
    return Caught(StatusCode::kResourceExhausted, what, error.what());
  } catch (const std::exception& error) {
    return Caught(StatusCode::kInternal, what, error.what());
  } catch (...) {
    return Caught(StatusCode::kInternal, what, "an exception of unknown type");
  }
}

}  // namespace tf_libra
