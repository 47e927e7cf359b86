#include "ops/lanes/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "ops/lanes/descriptors.h"

namespace tf_libra {

bool IsUnix(const std::string& host) { return host.rfind(kUnixHost, 0) == 0; }

Status ParseAddress(const Address& address, Endpoint* endpoint) {
  std::memset(static_cast<void*>(endpoint), 0, sizeof(*endpoint));
  if (IsUnix(address.host)) {
    const std::string name = address.host.substr(sizeof(kUnixHost) - 1);
    if (name.size() + 1 > sizeof(endpoint->local.sun_path)) {
      return Status(StatusCode::kInvalidArgument, "name of a Unix socket is too long: " + name);
    }
    endpoint->local.sun_family = AF_UNIX;
    endpoint->length = sizeof(sa_family_t);  // no name: the system chooses one
    if (!name.empty()) {
      // An abstract name begins with a zero byte and does not end with one.
      std::memcpy(endpoint->local.sun_path + 1, name.data(), name.size());
      endpoint->length += static_cast<socklen_t>(name.size() + 1);
    }
    return Status();
  }
  if (inet_pton(AF_INET, address.host.c_str(), &endpoint->ip.sin_addr) == 1) {
    endpoint->ip.sin_family = AF_INET;
    endpoint->ip.sin_port = htons(address.port);
    endpoint->length = sizeof(endpoint->ip);
    return Status();
  }
  if (inet_pton(AF_INET6, address.host.c_str(), &endpoint->ip6.sin6_addr) == 1) {
    endpoint->ip6.sin6_family = AF_INET6;
    endpoint->ip6.sin6_port = htons(address.port);
    endpoint->length = sizeof(endpoint->ip6);
    return Status();
  }
  return Status(StatusCode::kInvalidArgument,
                "address must be a numeric IPv4 or IPv6 address, got '" + address.host + "'");
}

Address FormatAddress(const Endpoint& endpoint, const std::string& host) {
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  if (!IsUnix(host)) return {host, ntohs(endpoint.ip.sin_port)};
  const size_t length = endpoint.length - sizeof(sa_family_t) - 1;
  return {kUnixHost + std::string(endpoint.local.sun_path + 1, length), 0};
}

std::string AddressText(const Address& address) {
  if (IsUnix(address.host)) return address.host;
  const bool has_colons = address.host.find(':') != std::string::npos;  // as IPv6 has
  const std::string host = has_colons ? "[" + address.host + "]" : address.host;
  return host + ":" + std::to_string(address.port);
}

Status InterfaceAddress(const std::string& name, std::string* host) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return SystemError(StatusCode::kUnavailable, "getifaddrs");
  std::string known, ip, ip6;
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const sa_family_t family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[INET6_ADDRSTRLEN];
    const void* address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    if (family == AF_INET6) {
      const auto* found = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      // A link-local address is meaningless without the interface, which has another name on
      // another host.
      if (IN6_IS_ADDR_LINKLOCAL(&found->sin6_addr)) continue;
      address = &found->sin6_addr;
    }
    inet_ntop(family, address, text, sizeof(text));
    std::string& first = family == AF_INET ? ip : ip6;
    if (name == entry->ifa_name && first.empty()) first = text;
    known += (known.empty() ? "" : ", ") + std::string(entry->ifa_name) + " (" + text + ")";
  }
  freeifaddrs(all);
  *host = ip.empty() ? ip6 : ip;
  if (!host->empty()) return Status();
  return Status(StatusCode::kInvalidArgument,
                "no network interface '" + name +
                    "' with an address that other hosts could reach; there are: " + known);
}

}  // namespace tf_libra
