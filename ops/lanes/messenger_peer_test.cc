// A messenger whose peer breaks the protocol.
#include <sys/socket.h>

#include <string>
#include <vector>

#include "ops/lanes/messenger_testing.h"
#include "ops/lanes/testing.h"

namespace tf_libra::messenger_peer_test {
namespace {

using messenger_testing::kReceive;
using messenger_testing::Node;
using messenger_testing::Patient;
using messenger_testing::Side;
using testing::ConnectAll;

// A peer sends what is no message, or what this rank has not requested.
TEST_CASE("PeerThatMakesNoSense") {
  testing::OverAll();
  Frame data;
  data.kind = Frame::kData;
  data.id = 99;
  data.num_bytes = 1 << 20;
  Frame unmatched = data;
  unmatched.id = 0;  // requested, but never offered
  const std::string known(reinterpret_cast<const char*>(&data), sizeof(data));
  const std::string early(reinterpret_cast<const char*>(&unmatched), sizeof(unmatched));
  Frame confirm;
  confirm.kind = Frame::kConfirm;
  const std::string once(reinterpret_cast<const char*>(&confirm), sizeof(confirm));
  confirm.kind = Frame::kConfirmed;  // without a kConfirm before
  const std::string confirmed(reinterpret_cast<const char*>(&confirm), sizeof(confirm));
  Frame room = data;
  room.kind = Frame::kCredit;  // for what is not sent
  const std::string credit(reinterpret_cast<const char*>(&room), sizeof(room));
  // More than there is room for.
  Frame offer, whole = unmatched;
  offer.kind = Frame::kOffer;
  offer.num_bytes = whole.num_bytes = 16;
  const std::string more = WithText(offer, "mx", "uint8 [16]") +
                           std::string(reinterpret_cast<const char*>(&whole), sizeof(whole)) +
                           std::string(16, 'x');
  for (const std::string& bytes :
       {std::string(100, 'x'), known, early, credit, more, once + once, confirmed}) {
    std::vector<Mesh> meshes = ConnectAll(2, 1);
    const Connection peer = std::move(meshes[0].messages[1]);
    Node node(std::move(meshes[1]), Patient());
    Side receive(kReceive, 0, "x", 16);
    receive.transfer->window = 8;
    receive.Post(&node);
    CHECK_EQ(testing::Send(peer, bytes.data(), bytes.size()), testing::IsOk());
    CHECK_EQ(receive.Wait(),
             testing::StatusIs(
                 StatusCode::kFailedPrecondition,
                 bytes == credit ? "rank 0 granted credit for a message" : "rank 0 sent "));
  }
}

TEST_CASE("PeerThatWritesWhatCannotBe") {
  testing::SetRendezvousHost(kUnixHost, true);
  std::vector<Mesh> meshes = ConnectAll(2, 1);
  const Connection peer = std::move(meshes[0].messages[1]);
  REQUIRE(peer.memory != nullptr);
  Node node(std::move(meshes[1]), Patient());
  Side receive(kReceive, 0, "x", 16);
  receive.Post(&node);
  RingEnd* const end = peer.memory->outgoing_parts();
  if (end->Advance(2 * end->capacity())) send(peer.socket.fd(), "", 1, MSG_NOSIGNAL);
  send(peer.socket.fd(), "", 1, MSG_NOSIGNAL);
  CHECK_EQ(receive.Wait(),
           testing::StatusIs(StatusCode::kFailedPrecondition,
                             "rank 0 wrote an invalid position into the shared memory"));
}

// Many messages, or fewer with long names.
void AnnouncedWithoutEnd(bool is_long) {
  std::vector<Mesh> meshes = ConnectAll(2, 1);
  const Connection peer = std::move(meshes[0].messages[1]);
  Node node(std::move(meshes[1]), Patient());
  Side receive(kReceive, 0, "y", 16);
  receive.Post(&node);
  Frame offer;
  offer.kind = is_long ? Frame::kRequest : Frame::kOffer;
  const std::string content(is_long ? 8000 : 0, 'c');
  std::string bytes;
  for (int i = 0; i < (is_long ? 2200 : (1 << 16) + 1); ++i) {
    offer.id = static_cast<uint64_t>(i);
    bytes += WithText(offer, "mx" + std::string(is_long, static_cast<char>('a' + i % 26)), content);
  }
  const Status sent = testing::Send(peer, bytes.data(), bytes.size());
  CHECK((sent.ok() || sent.code() == StatusCode::kUnavailable));  // it may hang up before
  CHECK_EQ(receive.Wait(),
           testing::StatusIs(StatusCode::kFailedPrecondition,
                             "rank 0 has more than 65536 messages, or 16 MiB of their names"));
}

TEST_CASE("PeerThatAnnouncesWithoutEnd") {
  testing::OverAll();
  AnnouncedWithoutEnd(/*is_long=*/false);
  AnnouncedWithoutEnd(/*is_long=*/true);
}

}  // namespace
}  // namespace tf_libra::messenger_peer_test
