#include "ops/lanes/address.h"

#include <string>

#include "ops/lanes/testing.h"

namespace tf_libra::address_test {
namespace {

TEST_CASE("AddressesAreFormattedAsTheyAreParsed") {
  for (const Address& address : {Address{"127.0.0.1", 80}, Address{"::1", 81},
                                 Address{kUnixHost + std::string("name"), 0}}) {
    Endpoint endpoint;
    CHECK_EQ(ParseAddress(address, &endpoint), testing::IsOk());
    const Address formatted = FormatAddress(endpoint, address.host);
    CHECK_EQ(formatted.host, address.host);
    CHECK_EQ(formatted.port, address.port);
  }
  CHECK_EQ(AddressText({"127.0.0.1", 80}), "127.0.0.1:80");
  CHECK_EQ(AddressText({"::1", 81}), "[::1]:81");
  CHECK_EQ(AddressText({"unix:name", 0}), "unix:name");
}

TEST_CASE("InvalidAddresses") {
  Endpoint endpoint;
  CHECK_EQ(ParseAddress({"localhost", 80}, &endpoint),
           testing::StatusIs(StatusCode::kInvalidArgument, "localhost"));
  CHECK_EQ(ParseAddress({kUnixHost + std::string(200, 'x'), 0}, &endpoint),
           testing::StatusIs(StatusCode::kInvalidArgument, "too long"));
}

TEST_CASE("InterfaceAddresses") {
  std::string host;
  CHECK_EQ(InterfaceAddress("lo", &host), testing::IsOk());
  CHECK_EQ(host, "127.0.0.1");
  const Status status = InterfaceAddress("no-such-interface", &host);
  CHECK_EQ(status, testing::StatusIs(StatusCode::kInvalidArgument, "'no-such-interface'"));
  CHECK_EQ(status.message(), testing::Contains("lo"));
}

}  // namespace
}  // namespace tf_libra::address_test
