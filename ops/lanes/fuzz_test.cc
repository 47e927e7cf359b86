// What another rank might send: the bytes of ops/lanes/corpus, and what becomes
// of them when bits turn and pieces go missing. Whatever comes, each reader
// ends, with an error or without, and touches nothing that is not its own: run
// under sanitizers, as `make fuzz` does with more of them.
//
// The beginning of a file's name says who reads it. The same bytes are tried in
// every run.

#include <dirent.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/control_plane.h"
#include "ops/lanes/frame.h"
#include "ops/lanes/messenger.h"
#include "ops/lanes/shared_memory.h"
#include "ops/lanes/shm_ring_io.h"
#include "ops/lanes/testing.h"

namespace tf_libra::fuzz_test {
namespace {

constexpr char kCorpus[] = "ops/lanes/corpus";

int Iterations() {
  const char* const iterations = std::getenv("TF_LIBRA_FUZZ_ITERATIONS");
  return iterations == nullptr ? 200 : std::atoi(iterations);
}

// The files whose name begins so, in the order of their names.
std::vector<std::string> Corpus(const std::string& beginning) {
  std::vector<std::string> names, files;
  DIR* const folder = opendir(kCorpus);
  CHECK(folder != nullptr);
  if (folder == nullptr) return files;
  while (const dirent* const entry = readdir(folder)) names.push_back(entry->d_name);
  closedir(folder);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (name.rfind(beginning, 0) != 0) continue;
    std::ifstream file(std::string(kCorpus) + "/" + name, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    CHECK(!files.back().empty());
  }
  CHECK(!files.empty());
  return files;
}

using Random = std::mt19937;

size_t Below(size_t limit, Random* random) { return (*random)() % limit; }

void Mutate(std::string* bytes, const std::string& other, Random* random) {
  const size_t at = Below(bytes->size() + 1, random);
  const size_t length = 1 + Below(16, random);
  switch (Below(6, random)) {
    case 0:
      if (at < bytes->size()) (*bytes)[at] ^= static_cast<char>(1 << Below(8, random));
      break;
    case 1: {
      // Numbers at which sizes and signs turn.
      const uint64_t numbers[] = {0, 1, 255, 0x7fffffff, 0x80000000, 0xffffffff, ~uint64_t{0}};
      const uint64_t number = numbers[Below(std::size(numbers), random)];
      const size_t size = std::min(size_t{1} << Below(4, random), bytes->size() - at);
      std::memcpy(&(*bytes)[at], &number, size);
      break;
    }
    case 2:
      bytes->erase(at, length);
      break;
    case 3:
      bytes->insert(at, std::string(length, static_cast<char>((*random)())));
      break;
    case 4:
      bytes->insert(at, other.substr(Below(other.size(), random)));
      break;
    default:
      bytes->resize(at);
  }
}

// Calls `read` with each file, and with what becomes of them.
template <typename Read>
void ForEachInput(const std::string& beginning, int iterations, Read read) {
  const std::vector<std::string> files = Corpus(beginning);
  if (files.empty()) return;
  for (const std::string& file : files) read(file);
  Random random(1);
  for (int i = 0; i < iterations; ++i) {
    std::string bytes = files[Below(files.size(), &random)];
    const std::string& other = files[Below(files.size(), &random)];
    for (size_t times = 1 + Below(4, &random); times > 0; --times) Mutate(&bytes, other, &random);
    read(bytes);
  }
}

// This rank's end of a connection over which the other one has sent `bytes`,
// and left.
Socket After(const std::string& bytes, Socket* theirs) {
  int fds[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  *theirs = Socket(fds[0]);
  CHECK_EQ(SendAll(*theirs, bytes.data(), bytes.size(), tf_libra::After(testing::kGenerousSeconds)),
           testing::IsOk());
  return Socket(fds[1]);
}

Socket After(const std::string& bytes) {
  Socket theirs;
  return After(bytes, &theirs);
}

TEST_CASE("Frames") {
  ForEachInput("messages", 50 * Iterations(), [](const std::string& bytes) {
    // Exactly as long as it is: sanitizers see who reads beyond.
    const std::vector<char> exact(bytes.begin(), bytes.end());
    for (size_t at = 0; at < exact.size();) {
      Frame frame;
      size_t length = 0;
      const Status status = ReadFrame(exact.data() + at, exact.size() - at, &frame, &length);
      CHECK(length <= exact.size() - at);
      if (!status.ok() || length == 0) break;
      if (frame.num_text_bytes > 0) {
        std::string key, content;
        SplitText(exact.data() + at + sizeof(Frame), frame.num_text_bytes, &key, &content);
        CHECK(FitsFrame(key, content));
        CHECK_EQ(WithText(frame, key, content), std::string(exact.data() + at, length));
      }
      at += length;
    }
  });
}

// Rank 1, which receives 16 bytes from rank 0 and sends 8 to it.
class MessengerOfRankOne {
 public:
  explicit MessengerOfRankOne(std::vector<Connection> peers) {
    MessengerOptions options;
    options.rank = 1;
    options.timeout_seconds = testing::kGenerousSeconds;
    options.on_failure = [this](const Status& status) { messenger_->End(status); };
    messenger_ = std::make_unique<Messenger>(options, std::move(peers), nullptr);
  }

  // Keys are a kind of messages, and "x" for the receive, "y" for the send.
  void Post(const std::string& kind, bool in_place) {
    std::vector<std::shared_ptr<Transfer>> transfers(2);
    for (int i = 0; i < 2; ++i) {
      transfers[i] = std::make_shared<Transfer>();
      transfers[i]->way = i == 0 ? Transfer::Way::kReceive : Transfer::Way::kSend;
      transfers[i]->key = kind + (i == 0 ? "x" : "y");
      transfers[i]->content = i == 0 ? "uint8 [16]" : "uint8 [8]";
      transfers[i]->data = i == 0 ? received_.data() : sent_.data();
      transfers[i]->num_bytes = i == 0 ? 16 : 8;
      transfers[i]->in_place = in_place;
      transfers[i]->done = [this, i](const Status&) { ends_[i].set_value(); };
    }
    if (in_place) {
      Transfer* const receive = transfers[0].get();
      receive->on_progress = [this, receive](size_t num_moved) {
        messenger_->Consume(receive, num_moved);
      };
    }
    CHECK_EQ(messenger_->Post(transfers), testing::IsOk());
  }

  // Waits until both transfers have ended.
  void End() {
    for (auto& end : ends_) end.get_future().get();
    messenger_->End(Status(StatusCode::kUnavailable, "over"));
    messenger_.reset();
  }

 private:
  std::vector<char> received_ = std::vector<char>(16), sent_ = std::vector<char>(8);
  std::promise<void> ends_[2];
  std::unique_ptr<Messenger> messenger_;
};

// Memory with rank 0, and the socket next to it.
struct SharedPeer {
  explicit SharedPeer(std::vector<Connection>* peers) {
    constexpr size_t kCapacity = 64 << 10;
    Socket file;
    CHECK_EQ(SharedMemory::Make(kCapacity, &memory, &file), testing::IsOk());
    CHECK_EQ(SharedMemory::Take(file, kCapacity, &(*peers)[0].memory), testing::IsOk());
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    (*peers)[0].socket = Socket(fds[0]);
    socket = Socket(fds[1]);
  }

  std::unique_ptr<SharedMemory> memory;
  Socket socket;
};

TEST_CASE("Messages") {
  ForEachInput("messages", Iterations(), [](const std::string& bytes) {
    std::vector<Connection> peers(2);
    peers[0].socket = After(bytes);
    MessengerOfRankOne messenger(std::move(peers));
    messenger.Post("m", /*in_place=*/false);
    messenger.End();
  });
}

// An exchange of floats with rank 0.
Status RunOfRankOne(std::vector<Connection>* peers, size_t count = 16) {
  std::vector<float> values(count, 1.0f);
  const size_t num_bytes = count * sizeof(float);
  const Buffers buffers({{values.data(), values.data(), num_bytes}});
  ExchangeOptions options;
  options.rank = 1;
  options.peers = peers;
  options.header.digest = 7;
  options.header.num_bytes = num_bytes;
  options.header.group = 3;
  options.header.num_threads = 1;
  options.header.element_type = static_cast<uint8_t>(ElementType::kFloat32);
  options.buffers = &buffers;
  options.slice = {0, num_bytes};
  options.timeout_seconds = testing::kGenerousSeconds;
  std::vector<char> scratch;
  return testing::RunWatched(options, &scratch).status;
}

// With a rank that sends `bytes` and no more, and has room for all that is sent to it.
void RunAgainst(const std::string& bytes, size_t count) {
  std::vector<Connection> peers(2);
  Socket theirs;
  peers[0].socket = After(bytes, &theirs);
  shutdown(theirs.fd(), SHUT_WR);
  const Status status = RunOfRankOne(&peers, count);
  CHECK(status.code() != StatusCode::kDeadlineExceeded);
}

TEST_CASE("Exchanges") {
  ForEachInput("exchange", 5 * Iterations(),
               [](const std::string& bytes) { RunAgainst(bytes, 16); });
}

// Of so many bytes that they come in segments.
TEST_CASE("Segments") {
  ForEachInput("segments", 2 * Iterations(),
               [](const std::string& bytes) { RunAgainst(bytes, 1 << 14); });
}

// What a peer does to the ends of its rings, and to the socket next to them: a byte says which,
// eight by how much.
TEST_CASE("Memories") {
  ForEachInput("memory", Iterations(), [](const std::string& bytes) {
    std::vector<Connection> peers(2);
    SharedPeer theirs(&peers);
    std::thread peer([&bytes, &memory = theirs.memory, socket = std::move(theirs.socket)] {
      RingEnd* const ends[] = {memory->outgoing_parts(), memory->outgoing_sums(),
                               memory->incoming_parts(), memory->incoming_sums()};
      const std::vector<char> wakes(2 * kMaxWakes);
      for (size_t at = 0; at + 9 <= bytes.size(); at += 9) {
        const size_t which = static_cast<uint8_t>(bytes[at]) % 6;
        uint64_t amount;
        std::memcpy(&amount, &bytes[at + 1], sizeof(amount));
        if (which < 4) {
          if (which < 2) std::memcpy(ends[which]->here(), &bytes[at], bytes.size() - at);
          static_cast<void>(ends[which]->Advance(amount));
        } else if (which == 4) {
          ends[amount % 4]->Await(amount);
        }
        send(socket.fd(), wakes.data(), which == 5 ? amount % wakes.size() : 1,
             MSG_NOSIGNAL | MSG_DONTWAIT);
      }
    });
    CHECK(!RunOfRankOne(&peers).ok());  // the other one has left
    peer.join();
  });
}

// What a peer writes into the rings of messages. Pieces of the input: a byte that says which ring,
// one with the number of bytes, and these. The receive is `in_place`, and so is the send, whose
// bytes are on their way before the peer requests them.
TEST_CASE("MessagesInMemory") {
  ForEachInput("rings", Iterations(), [](const std::string& bytes) {
    std::vector<Connection> peers(2);
    SharedPeer theirs(&peers);
    MessengerOfRankOne messenger(std::move(peers));
    messenger.Post("c", /*in_place=*/true);
    RingEnd* const ends_of_peer[] = {theirs.memory->outgoing_parts(),
                                     theirs.memory->outgoing_sums()};
    for (size_t at = 0; at + 2 <= bytes.size();) {
      RingEnd* const ring = ends_of_peer[static_cast<uint8_t>(bytes[at]) % 2];
      const size_t size =
          std::min<size_t>(static_cast<uint8_t>(bytes[at + 1]), bytes.size() - at - 2);
      std::memcpy(ring->here(), bytes.data() + at + 2, size);
      static_cast<void>(ring->Advance(size));
      send(theirs.socket.fd(), "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
      at += 2 + size;
    }
    theirs.socket = Socket();  // it leaves
    messenger.End();
  });
}

TEST_CASE("Controls") {
  ForEachInput("control", 5 * Iterations(), [](const std::string& bytes) {
    std::vector<Socket> peers(2);
    peers[0] = After(bytes);
    ControlPlane control(Tree(1, 2, {}), std::move(peers));
    CHECK_EQ(control.Start(), testing::IsOk());
    std::string text;
    const Status status = control.Broadcast(0, testing::kGenerousSeconds, &text);
    CHECK((!status.ok() || text.size() <= bytes.size()));
    control.WaitForAborts(testing::kGenerousSeconds);
  });
}

// Strangers, while ranks meet.
TEST_CASE("Hellos") {
  testing::Meeting meeting(2, 1);
  Mesh meshes[2];
  std::thread first([&] { CHECK_EQ(meeting.Connect(0, &meshes[0]), testing::IsOk()); });
  ForEachInput("hello", Iterations(), [&](const std::string& bytes) {
    Socket stranger;
    CHECK_EQ(Connect(meeting.options.addresses[0], tf_libra::After(testing::kGenerousSeconds),
                     &stranger),
             testing::IsOk());
    // It may hang up in the middle.
    const Status ignored =
        SendAll(stranger, bytes.data(), bytes.size(), tf_libra::After(testing::kGenerousSeconds));
    static_cast<void>(ignored);
  });
  CHECK_EQ(meeting.Connect(1, &meshes[1]), testing::IsOk());
  first.join();
}

}  // namespace
}  // namespace tf_libra::fuzz_test
