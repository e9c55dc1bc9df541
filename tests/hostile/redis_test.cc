// A Redis that is not one, or is another's now: what can its answers do to those that rely on it?

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/net/redis_reply.h"
#include "indexer/net/redis_reply_builder.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

enum class Garbage {
  kUnasked,       // more answers than questions
  kEndlessText,   // a text of 512 MiB
  kHugeArray,     // an array of 2^31 elements
  kLargest,       // what is just allowed, again and again
  kNegative,      // lengths below -1
  kWrongTypes,    // answers that are RESP2, of types that the command does not have
  kNested,        // arrays in arrays, 100,000 deep
  kNoise,         // random bytes
  kHalf,          // half an answer, then the end
  kDripped,       // byte by byte, and at last without an end
  kResp3,         // types of another protocol
  kRedirections,  // every key has moved elsewhere
};

constexpr std::pair<Garbage, const char*> kKinds[] = {
    {Garbage::kUnasked, "unasked-for replies"},
    {Garbage::kEndlessText, "an endless text"},
    {Garbage::kHugeArray, "an array of 2^31"},
    {Garbage::kLargest, "the largest replies"},
    {Garbage::kNegative, "negative lengths"},
    {Garbage::kWrongTypes, "wrong types"},
    {Garbage::kNested, "nesting"},
    {Garbage::kNoise, "noise"},
    {Garbage::kHalf, "half a reply"},
    {Garbage::kDripped, "drips"},
    {Garbage::kResp3, "RESP3"},
    {Garbage::kRedirections, "redirections"},
};

// Listens as a Redis and answers with garbage: every third connection at once, every third after
// the introduction, and every third where it matters most, in the reads of logs and leases; what
// comes before is answered well.
class GarbageRedis {
 public:
  GarbageRedis() {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
        listen(listener_, 128) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      ADD_FAILURE() << "no port for a Redis";
    }
    port_ = ntohs(address.sin_port);
    // More than there are connections at a time.
    for (int i = 0; i < 32; ++i) workers_.emplace_back([this] { Work(); });
  }
  ~GarbageRedis() {
    stopping_ = true;
    for (std::thread& worker : workers_) worker.join();
    close(listener_);
  }

  std::string url() const { return "redis://127.0.0.1:" + std::to_string(port_); }
  void Send(Garbage kind) {
    kind_ = kind;
    rounds_ = 0;
  }
  // How often that garbage was sent.
  uint64_t rounds() const { return rounds_; }
  // Connections that the other side did not end although it got what ends them.
  uint64_t kept_open() const { return kept_open_; }

 private:
  using Args = std::vector<std::string>;

  void Work() {
    while (!stopping_) {
      pollfd ready = {listener_, POLLIN, 0};
      if (poll(&ready, 1, 50) <= 0) continue;
      RawSocket socket(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.ok()) Serve(&socket, connections_.fetch_add(1));
    }
  }

  void Serve(RawSocket* socket, uint64_t number) {
    const Garbage kind = kind_;
    // Commands are written as replies are.
    RedisReplyBuilder builder(16 << 20);
    const std::unique_ptr<redisReader, void (*)(redisReader*)> reader(redisReaderCreate(),
                                                                      redisReaderFree);
    builder.Attach(reader.get());
    bool ended = false;
    while (!ended && !stopping_ && kind == kind_) {
      const std::string read = socket->ReadSome(milliseconds(50), &ended);
      redisReaderFeed(reader.get(), read.data(), read.size());
      void* made = nullptr;
      while (redisReaderGetReply(reader.get(), &made) == REDIS_OK && made != nullptr) {
        Args args;
        for (const RedisReply& element : builder.Take().elements) args.push_back(element.text);
        if (!Answer(socket, args, kind, number)) return;
      }
      if (reader->err != 0) return;
    }
  }

  // False: the connection is of no use any more.
  bool Answer(RawSocket* socket, const Args& args, Garbage kind, uint64_t number) {
    if (args.empty()) return false;
    const bool introduction = args[0] == "PING";
    const bool reads = args[0] == "XREAD" || args[0] == "EVAL";
    const bool well = number % 3 == 1 ? introduction : number % 3 == 2 && !reads;
    if (well && kind != Garbage::kDripped) return socket->Send(Proper(args));
    const bool over = !SendGarbage(socket, args, kind, well);
    rounds_.fetch_add(1);
    return !over;
  }

  static std::string Proper(const Args& args) {
    if (args[0] == "PING") return "+PONG\r\n";
    if (args[0] == "GET") return "$1\r\n1\r\n";
    if (args[0] == "XREVRANGE" || args[0] == "HGETALL") return "*0\r\n";
    if (args[0] == "XREAD") return "*-1\r\n";
    if (args[0] == "HSCAN") return "*2\r\n$1\r\n0\r\n*0\r\n";
    return ":1\r\n";
  }

  // False: the connection is over.
  bool SendGarbage(RawSocket* socket, const Args& args, Garbage kind, bool well) {
    switch (kind) {
      case Garbage::kUnasked:
        return Ends(socket, Proper(args) + "+OK\r\n+OK\r\n");
      case Garbage::kEndlessText:
        return Endless(socket, "$536870912\r\n", std::string(1 << 20, 'x'), 1024);
      case Garbage::kHugeArray:
        return Endless(socket, "*2147483648\r\n", ":1\r\n:2\r\n:3\r\n", 1 << 20);
      case Garbage::kLargest: {
        const std::string text = "$1000000\r\n" + std::string(1000000, 'x') + "\r\n";
        return Endless(socket, "*16\r\n", text, 64);
      }
      case Garbage::kNegative:
        return Ends(socket, Below(2) == 0 ? "$-7\r\n" : "*-2\r\n");
      case Garbage::kWrongTypes:
        return socket->Send(args[0] == "PING" || args[0] == "GET" ? Proper(args) : WrongType());
      case Garbage::kNested: {
        std::string nested;
        for (int i = 0; i < 100000; ++i) nested += "*1\r\n";
        return Ends(socket, nested + ":1\r\n");
      }
      case Garbage::kNoise: {
        std::string noise(1 << 16, ' ');
        for (char& c : noise) c = static_cast<char>(Below(256));
        return Ends(socket, noise);
      }
      case Garbage::kHalf:
        socket->Send("*3\r\n$5\r\nhel");
        return false;
      case Garbage::kDripped:
        if (well || Below(4) != 0) return Drip(socket, Proper(args));
        Drip(socket, "$100000\r\n" + std::string(100000, 'x'));
        return Ends(socket, "");
      case Garbage::kResp3:
        return Ends(socket, "%1\r\n+a\r\n+b\r\n");
      case Garbage::kRedirections:
        return socket->Send("-MOVED " + std::to_string(Below(16384)) +
                            " 127.77.0.1:" + std::to_string(1 + Below(65535)) + "\r\n");
    }
    return false;
  }

  static std::string WrongType() {
    static constexpr const char* kAnswers[] = {
        ":1\r\n",
        ":-9223372036854775808\r\n",
        "+QUEUED\r\n",
        "$3\r\nabc\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*1\r\n*0\r\n",
        "*1\r\n*-1\r\n",
        "*1\r\n*2\r\n$1\r\na\r\n:5\r\n",
        "*1\r\n*2\r\n$1\r\na\r\n*1\r\n*0\r\n",
        "*1\r\n*2\r\n$1\r\na\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*1\r\n$1\r\nm\r\n",
        "*2\r\n$3\r\n9-9\r\n*-1\r\n",
        "*2\r\n-ERR inside\r\n:7\r\n",
        "*4\r\n$1\r\nv\r\n$1\r\nb\r\n*1\r\n:1\r\n*3\r\n:1\r\n:2\r\n:3\r\n",
        ("*4\r\n$1\r\nv\r\n$1\r\nb\r\n*2\r\n$2\r\nid\r\n$39\r\n"
         "000000000000000000010000000000000001{x}\r\n*0\r\n"),
        "-ERR what\r\n",
        "-MOVED\r\n",
        "-ASK 1 :\r\n",
        "-\r\n",
    };
    return kAnswers[Below(std::size(kAnswers))];
  }

  // Ends only by the other side.
  bool Ends(RawSocket* socket, const std::string& bytes) {
    socket->Send(bytes);
    if (!socket->WaitEnd(seconds(60))) kept_open_.fetch_add(1);
    return false;
  }
  bool Endless(RawSocket* socket, std::string_view head, std::string_view again, int times) {
    bool open = socket->Send(head);
    for (; open && times > 0 && !stopping_; --times) open = socket->Send(again);
    return Ends(socket, "");
  }
  bool Drip(RawSocket* socket, std::string_view bytes) {
    bool ended = false;
    for (size_t i = 0; i < bytes.size() && !ended && !stopping_; ++i) {
      if (!socket->Send(bytes.substr(i, 1))) return false;
      if (!socket->ReadSome(milliseconds(2), &ended).empty()) return false;
    }
    return !ended;
  }

  static uint64_t Below(uint64_t bound) {
    thread_local std::mt19937_64 random(std::hash<std::thread::id>()(std::this_thread::get_id()));
    return random() % bound;
  }

  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<Garbage> kind_{Garbage::kUnasked};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> connections_{0};
  std::atomic<uint64_t> rounds_{0};
  std::atomic<uint64_t> kept_open_{0};
  std::vector<std::thread> workers_;
};

struct Target {
  const char* program;
  std::vector<std::string> flags;  // each takes the URL
};

void PrintTo(const Target& target, std::ostream* out) { *out << target.program; }

class RedisTest : public testing::TestWithParam<Target> {};

TEST_P(RedisTest, GarbageHarmsNobody) {
  GarbageRedis redis;
  SiegeOptions options = {.program = GetParam().program};
  for (const std::string& flag : GetParam().flags) options.args.push_back(flag + redis.url());
  Siege siege(std::move(options));
  ASSERT_TRUE(siege.ok());
  for (const auto& [kind, name] : kKinds) {
    redis.Send(kind);
    // It comes back for more.
    while (siege.Alive() && redis.rounds() < 9) siege.Watch(1);
    std::cout << name << ": " << redis.rounds() << " times, " << (siege.RssBytes() >> 20)
              << " MiB, at most " << (siege.RssPeakBytes() >> 20) << std::endl;
    ASSERT_TRUE(siege.Alive()) << name << "\n" << siege.LogTail();
  }
  EXPECT_EQ(redis.kept_open(), 0u);
  // At no time, either.
  EXPECT_LE(siege.RssPeakBytes(), siege.rss_before() + (64 << 20));
  siege.ExpectUnharmed();
}

INSTANTIATE_TEST_SUITE_P(All, RedisTest,
                         testing::Values(Target{kLeaf, {"--redis=", "--announce=", "--parents="}},
                                         Target{kHierarchy, {"--announce=", "--parents="}},
                                         Target{kFrontend, {"--announce=", "--hierarchy="}}),
                         [](const auto& info) {
                           const std::string program = info.param.program;
                           return program.substr(program.find('-') + 1);
                         });

}  // namespace
}  // namespace kvatlas
