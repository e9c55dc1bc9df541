#include "indexer/net/http_server.h"
#include "indexer/base/await.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <list>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "indexer/base/mutex.h"
#include "indexer/net/tcp_buffers_test_util.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// A blocking client that sends exactly the given bytes.
class Client {
 public:
  // `receive_buffer`: of its own size in bytes, instead of one that the kernel lets grow.
  explicit Client(const Address& address, int receive_buffer = 0) : socket_(io_) {
    socket_.open(asio::ip::tcp::v4());
    if (receive_buffer > 0)
      socket_.set_option(asio::socket_base::receive_buffer_size(receive_buffer));
    socket_.connect({asio::ip::make_address(address.host), address.port});
  }

  bool Send(std::string_view bytes) {
    error_code error;
    asio::write(socket_, asio::buffer(bytes.data(), bytes.size()), error);
    return !error;
  }

  std::string ReadToEnd() {
    std::string all = std::move(pending_);
    error_code error;
    asio::read(socket_, asio::dynamic_buffer(all), error);
    return all;
  }

  // Up to and with `end`.
  std::string ReadUntil(std::string_view end) {
    error_code error;
    const size_t size = asio::read_until(socket_, asio::dynamic_buffer(pending_), end, error);
    std::string text = pending_.substr(0, size);
    pending_.erase(0, size);
    return text;
  }

 private:
  asio::io_context io_;
  asio::ip::tcp::socket socket_;
  std::string pending_;
};

// Opens on demand, for handlers that take as long as a test wants.
class Door {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.SignalAll();
  }
  void Enter() {
    MutexLock lock(&mutex_);
    ++inside_;
    changed_.SignalAll();
    while (!open_) changed_.Wait(&mutex_);
  }
  bool HasVisitors() {
    MutexLock lock(&mutex_);
    return inside_ > 0;
  }
  void WaitForVisitors(int count) {
    MutexLock lock(&mutex_);
    while (inside_ < count) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ = false;
  int inside_ = 0;
};

HttpQuickHandler Says(std::string text) {
  return [text](const HttpRequest&, HttpResponse* response) {
    response->body = text;
    return true;
  };
}

// Time-outs that never pass, however slow a test is.
constexpr Duration kPatience = std::chrono::minutes(10);

class HttpServerTest : public ::testing::Test {
 protected:
  explicit HttpServerTest(HttpServerOptions options = {.listen = {"127.0.0.1", 0},
                                                       .io_threads = 2,
                                                       .header_timeout = kPatience,
                                                       .request_timeout = kPatience,
                                                       .write_timeout = kPatience,
                                                       .bare_errors = true})
      : http_(options) {
    http_.Handle({.method = "GET", .path = "/quick", .quick = Says("\"quick\"")});
    http_.Handle({.method = "POST",
                  .path = "/size",
                  .quick =
                      [](const HttpRequest& request, HttpResponse* response) {
                        response->body = std::to_string(request.body.size());
                        return true;
                      },
                  .body_bytes_max = 1000,
                  .json_body = true});
  }

  void Start() { ASSERT_TRUE(http_.Start().ok()); }

  std::string Ask(std::string_view method, std::string_view target, std::string_view headers = "",
                  std::string_view body = "") {
    Client client(http_.address());
    client.Send(std::string(method) + " " + std::string(target) +
                " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + std::string(headers) +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body));
    return client.ReadToEnd();
  }

  Door door_;
  HttpServer http_;
};

TEST_F(HttpServerTest, BareErrorsHaveNoBodyAndSayWhatIsAllowed) {
  Start();
  EXPECT_EQ(Ask("GET", "/nope"),
            "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
  EXPECT_EQ(Ask("POST", "/quick"),
            "HTTP/1.1 405 Method Not Allowed\r\nallow: GET,HEAD\r\nconnection: close\r\n"
            "content-length: 0\r\n\r\n");
}

TEST_F(HttpServerTest, BodyThatIsNotDeclaredAsJsonGets415) {
  Start();
  constexpr char kText[] = "Expected request with `Content-Type: application/json`";
  EXPECT_THAT(Ask("POST", "/size", "", "{}"), EndsWith(kText));
  EXPECT_THAT(Ask("POST", "/size", "Content-Type: text/plain\r\n", "{}"), EndsWith(kText));
  EXPECT_THAT(Ask("POST", "/size", "Content-Type: application/jsonx\r\n", "{}"), EndsWith(kText));
  for (const char* type : {"application/json", "Application/JSON ; charset=utf-8",
                           "application/vnd.x+json", "application/json;v=1"}) {
    EXPECT_THAT(Ask("POST", "/size", std::string("Content-Type: ") + type + "\r\n", "{}"),
                EndsWith("\r\n\r\n2"))
        << type;
  }
}

// As through a proxy (RFC 9112 §3.2.2).
TEST_F(HttpServerTest, ATargetInAbsoluteFormIsItsPath) {
  Start();
  constexpr char kJson[] = "Content-Type: application/json\r\n";
  for (const char* target : {"http://h/size", "HTTP://h:80/size?a=b", "https://[::1]/size"})
    EXPECT_THAT(Ask("POST", target, kJson, "{}"), EndsWith("\r\n\r\n2")) << target;
  for (const char* target : {"http://h", "http://h?a=/size"})
    EXPECT_THAT(Ask("POST", target, kJson, "{}"), StartsWith("HTTP/1.1 404 ")) << target;
  EXPECT_THAT(Ask("POST", "ftp://h/size", kJson, "{}"), StartsWith("HTTP/1.1 400 "));
}

// A browser sends the name of the page's host, which may resolve to 127.0.0.1 by now.
TEST_F(HttpServerTest, AStrangersHostNameIsRefusedOnLoopback) {
  http_.Handle({.method = "GET", .path = "/healthz", .quick = Says("well"), .vital = true});
  Start();
  const auto ask = [&](const std::string& path, const std::string& host) {
    Client client(http_.address());
    client.Send("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
    return client.ReadToEnd();
  };
  const std::string refused = ask("/quick", "evil.example:8090");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(refused, HasSubstr("--http_names=evil.example"));
  EXPECT_THAT(ask("/quick", "127.0.0.1:8090"), EndsWith("\"quick\""));
  EXPECT_THAT(ask("/quick", "localhost"), EndsWith("\"quick\""));
  EXPECT_THAT(ask("/healthz", "evil.example"), EndsWith("well"));
}

TEST_F(HttpServerTest, LimitIsTheRoutes) {
  Start();
  constexpr char kJson[] = "Content-Type: application/json\r\n";
  EXPECT_THAT(Ask("POST", "/size", kJson, std::string(1000, ' ')), EndsWith("\r\n\r\n1000"));
  const std::string large = Ask("POST", "/size", kJson, std::string(1001, ' '));
  EXPECT_THAT(large, StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(large, EndsWith("Failed to buffer the request body: length limit exceeded"));
}

// Without it curl would wait for a second (findings/curl_waits_a_second.sh).
TEST_F(HttpServerTest, ClientThatAsksBeforeSendingIsToldToGoOn) {
  Start();
  Client client(http_.address());
  client.Send(
      "POST /size HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
      "Content-Length: 2\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("{}");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n2"), StartsWith("HTTP/1.1 200 "));
  Client too_much(http_.address());
  too_much.Send(
      "POST /size HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
      "Content-Length: 2000\r\n\r\n");
  EXPECT_THAT(too_much.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 413 "));
}

TEST_F(HttpServerTest, AnswersOfAConnectionComeInTheOrderOfItsRequests) {
  http_.Handle({.method = "GET", .path = "/slow", .handler = [&](const HttpRequest&) {
                  door_.Enter();
                  return HttpResponse{.body = "\"slow\""};
                }});
  Start();
  Client client(http_.address());
  client.Send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\nGET /quick HTTP/1.1\r\nHost: h\r\n\r\n");
  door_.WaitForVisitors(1);
  // Others are not held up meanwhile.
  EXPECT_THAT(Ask("GET", "/quick"), EndsWith("\"quick\""));
  door_.Open();
  EXPECT_THAT(client.ReadUntil("\"slow\""), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(client.ReadUntil("\"quick\""), StartsWith("HTTP/1.1 200 "));
}

// A request that is refused before its header is complete is not reported to the observer of the
// one before it.
TEST_F(HttpServerTest, RefusalOfWhatIsNoRequestHasNothingOfTheLastOne) {
  class Count : public HttpObserver {
   public:
    void Answered(const HttpRequest&, std::string_view, const HttpResponse&, Duration) override {
      answered.fetch_add(1);
    }
    std::atomic<int> answered{0};
  };
  static Count count;
  http_.Handle({.method = "GET", .path = "/counted", .quick = Says("\"one\""), .observer = &count});
  Start();
  Client counted(http_.address());
  counted.Send("GET /counted HTTP/1.1\r\nHost: h\r\n\r\nno request\r\n\r\n");
  EXPECT_THAT(counted.ReadUntil("\"one\""), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(counted.ReadToEnd(), StartsWith("HTTP/1.1 400 "));
  EXPECT_EQ(count.answered.load(), 1);
  Client refused(http_.address());
  refused.Send("POST /quick HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\nno request\r\n\r\n");
  EXPECT_THAT(refused.ReadUntil("\r\n\r\n"), HasSubstr("allow: GET,HEAD\r\n"));
  EXPECT_EQ(refused.ReadToEnd(),
            "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
}

TEST_F(HttpServerTest, ManyPipelinedRequestsAreAllAnswered) {
  Start();
  Client client(http_.address());
  std::string requests;
  for (int i = 0; i < 1000; ++i) requests += "GET /quick HTTP/1.1\r\nHost: h\r\n\r\n";
  std::thread sender([&] { client.Send(requests); });
  for (int i = 0; i < 1000; ++i) ASSERT_THAT(client.ReadUntil("\"quick\""), Not(IsEmpty()));
  sender.join();
}

TEST_F(HttpServerTest, QuickHandlerMayDecline) {
  http_.Handle({.method = "POST",
                .path = "/either",
                .handler = [](const HttpRequest&) { return HttpResponse{.body = "pool"}; },
                .quick =
                    [](const HttpRequest& request, HttpResponse* response) {
                      if (request.body.empty()) return false;
                      response->body = "quick";
                      return true;
                    }});
  Start();
  EXPECT_THAT(Ask("POST", "/either"), EndsWith("pool"));
  EXPECT_THAT(Ask("POST", "/either", "", "x"), EndsWith("quick"));
  // A large body is not looked at on an I/O thread.
  EXPECT_THAT(Ask("POST", "/either", "", std::string(1 << 20, 'x')), EndsWith("pool"));
}

TEST_F(HttpServerTest, HandlersThatThrowAnswer500) {
  http_.Handle(
      {.method = "GET", .path = "/throws", .quick = [](const HttpRequest&, HttpResponse*) -> bool {
         throw std::runtime_error("quick");
       }});
  http_.Handle({.method = "GET", .path = "/throws_too", .handler = [](const HttpRequest&) {
                  throw std::runtime_error("pool");
                  return HttpResponse();
                }});
  Start();
  EXPECT_THAT(Ask("GET", "/throws"), StartsWith("HTTP/1.1 500 "));
  EXPECT_THAT(Ask("GET", "/throws_too"), StartsWith("HTTP/1.1 500 "));
}

// ---- Answers in pieces ----

HttpHandler InPieces(std::vector<std::string> pieces, bool fails = false) {
  return [=](const HttpRequest&) {
    auto at = std::make_shared<size_t>(0);
    HttpResponse response;
    response.more = [=](std::string* piece) {
      if (fails && *at + 1 == pieces.size()) throw std::runtime_error("no more");
      *piece += pieces[(*at)++];
      return *at < pieces.size();
    };
    return response;
  };
}

TEST_F(HttpServerTest, AnswerInPiecesIsChunked) {
  http_.Handle({.method = "GET", .path = "/pieces", .handler = InPieces({"abc", "", "defg", ""})});
  Start();
  Client client(http_.address());
  client.Send(
      "GET /pieces HTTP/1.1\r\nHost: h\r\n\r\nHEAD /pieces HTTP/1.1\r\nHost: h\r\n\r\nGET /quick "
      "HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("transfer-encoding: chunked"));
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("transfer-encoding: chunked"));
  EXPECT_THAT(client.ReadUntil("\"quick\""), StartsWith("HTTP/1.1 200 "));  // and goes on
}

TEST_F(HttpServerTest, OldClientsGetPiecesUntilTheEnd) {
  http_.Handle({.method = "GET", .path = "/pieces", .handler = InPieces({"abc", "defg"})});
  Start();
  Client client(http_.address());
  client.Send("GET /pieces HTTP/1.0\r\n\r\n");
  EXPECT_THAT(client.ReadToEnd(), EndsWith("\r\n\r\nabcdefg"));
}

TEST_F(HttpServerTest, AnswerWhoseSourceFailsHasNoEnd) {
  http_.Handle({.method = "GET", .path = "/pieces", .handler = InPieces({"abc", "defg"}, true)});
  Start();
  Client client(http_.address());
  client.Send("GET /pieces HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(client.ReadToEnd(), EndsWith("3\r\nabc\r\n"));
}

// ---- Slow, stuck, or too many clients ----

TEST_F(HttpServerTest, StuckClientsHarmNobody) {
  constexpr size_t kPieceBytes = 256 << 10;
  constexpr int kReceiveBuffer = 64 << 10;
  std::atomic<size_t> pieces = 0;
  http_.Handle({.method = "GET", .path = "/endless", .handler = [&](const HttpRequest&) {
                  HttpResponse response;
                  response.more = [&](std::string* piece) {
                    ++pieces;
                    piece->assign(kPieceBytes, 'x');
                    return true;
                  };
                  return response;
                }});
  Start();
  // Half a header, half a body, an answer that is not read, an endless one: twenty of each, which
  // is far more than there are threads.
  std::list<Client> stuck;
  for (int i = 0; i < 20; ++i) {
    stuck.emplace_back(http_.address()).Send("GET /quick HTT");
    stuck.emplace_back(http_.address())
        .Send(
            "POST /size HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: "
            "9\r\n\r\n{");
    stuck.emplace_back(http_.address()).Send("GET /quick HTTP/1.1\r\nHost: h\r\n\r\n");
    stuck.emplace_back(http_.address(), kReceiveBuffer)
        .Send("GET /endless HTTP/1.1\r\nHost: h\r\n\r\n");
  }
  ASSERT_TRUE(Await([&] { return pieces >= 20; }, std::chrono::seconds(60)));
  for (int i = 0; i < 100; ++i) EXPECT_THAT(Ask("GET", "/quick"), EndsWith("\"quick\""));
  EXPECT_GE(http_.connections(), 80u);
  // A piece is made when the one before is gone: sockets' buffers hold a few, and no more come.
  // Linux doubles the size that a socket asks for.
  const size_t buffered = (TcpSendBufferMax() + 2 * kReceiveBuffer) / kPieceBytes;
  EXPECT_LE(pieces, 20 * (buffered + 2));
}

TEST_F(HttpServerTest, FramingThatOthersMayReadOtherwiseGets400AndTheEnd) {
  Start();
  constexpr char kNext[] =
      "0\r\n\r\nGET /quick HTTP/1.1\r\nHost: x\r\n"
      "Connection: close\r\n\r\n";
  for (const char* fields : {
           "Transfer-Encoding: xchunked\r\n",
           "Transfer-Encoding: identity\r\n",
           "Transfer-Encoding: chunked, identity\r\n",
           "Transfer-Encoding: identity, chunked\r\n",
           "Transfer-Encoding:\r\n chunked\r\n",
           "Transfer-Encoding:\r\n\tchunked\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
           "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
           "Host: y\r\n",
           "Content-Length: 5\r\nContent-Length: 5\r\n",
           "Content-Length: 5, 5\r\n",
           "Content-Length: +5\r\n",
           "Content-Length: -5\r\n",
           "Content-Length: 0x5\r\n",
           "X-A: b\r\n c\r\n",
           "X A: b\r\n",
           "X-A : b\r\n",
           " X-A: b\r\n",
           "X-A\r\n",
       }) {
    Client client(http_.address());
    client.Send(std::string("POST /size HTTP/1.1\r\nHost: x\r\n") +
                "Content-Type: application/json\r\n" + fields + "\r\n" + kNext);
    const std::string answers = client.ReadToEnd();
    EXPECT_THAT(answers, StartsWith("HTTP/1.1 400 ")) << fields;
    EXPECT_THAT(answers, Not(HasSubstr("quick"))) << fields;
  }
  Client old(http_.address());
  old.Send("POST /size HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  EXPECT_THAT(old.ReadToEnd(), StartsWith("HTTP/1.1 400 "));
}

// All connections are taken by those that are being answered, and the thread of long requests as
// well.
class HttpServerVitalTest : public HttpServerTest {
 protected:
  HttpServerVitalTest()
      : HttpServerTest({.listen = {"127.0.0.1", 0},
                        .pool_threads = 1,
                        .connections_max = 8,
                        .header_timeout = kPatience,
                        .request_timeout = kPatience,
                        .write_timeout = kPatience}) {
    http_.Handle({.method = "GET", .path = "/waits", .handler = [&](const HttpRequest&) {
                    door_.Enter();
                    return HttpResponse{.body = "waited"};
                  }});
    http_.Handle({.method = "GET",
                  .path = "/well",
                  .handler = [](const HttpRequest&) { return HttpResponse{.body = "well"}; },
                  .vital = true});
    Start();
  }
};

TEST_F(HttpServerVitalTest, IsAnsweredWhenAllElseIsTaken) {
  std::list<Client> waits;
  for (int i = 0; i < 6; ++i)  // three quarters of all: one peer's share
    waits.emplace_back(http_.address())
        .Send("GET /waits HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  door_.WaitForVisitors(1);
  std::string refused;
  while (!refused.starts_with("HTTP/1.1 503 ")) {  // once all six are being answered
    Client client(http_.address());
    client.Send("GET /quick HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    refused = client.ReadToEnd();
  }
  EXPECT_THAT(refused, HasSubstr("retry-after: 1\r\n"));
  for (int i = 0; i < 20; ++i) {
    Client client(http_.address());
    client.Send("GET /well HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(client.ReadToEnd(), EndsWith("well"));
  }
  door_.Open();
  for (Client& client : waits) EXPECT_THAT(client.ReadToEnd(), EndsWith("waited"));
}

TEST_F(HttpServerVitalTest, AConnectionMayAskForAnythingNext) {
  door_.Open();
  Client client(http_.address());
  for (const char* path : {"/well", "/well", "/waits", "/well", "/waits"}) {
    client.Send(std::string("GET ") + path + " HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_THAT(client.ReadUntil(path[2] == 'e' ? "well" : "waited"), StartsWith("HTTP/1.1 200 "));
  }
}

TEST_F(HttpServerVitalTest, HalfSentHeadersGiveWay) {
  std::list<Client> half;
  for (int i = 0; i < 300; ++i) half.emplace_back(http_.address()).Send("GET /waits HTT");
  for (int i = 0; i < 20; ++i) {
    Client client(http_.address());
    client.Send("GET /well HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(client.ReadToEnd(), EndsWith("well"));
  }
}

class HttpServerBoundsTest : public HttpServerTest {
 protected:
  explicit HttpServerBoundsTest(Duration timeout = std::chrono::milliseconds(200))
      : HttpServerTest({.listen = {"127.0.0.1", 0},
                        .pool_threads = 1,
                        .queue_max = 1,
                        .bodies_bytes_max = 1 << 20,
                        .header_timeout = timeout,
                        .request_timeout = timeout,
                        .write_timeout = timeout}) {
    http_.Handle({.method = "POST",
                  .path = "/waits",
                  .handler =
                      [&](const HttpRequest&) {
                        door_.Enter();
                        return HttpResponse{.body = "waited"};
                      },
                  .body_bytes_max = 2 << 20});
    Start();
  }
};

class HttpServerQueueTest : public HttpServerBoundsTest {
 protected:
  HttpServerQueueTest() : HttpServerBoundsTest(kPatience) {}
};

TEST_F(HttpServerQueueTest, QueueOfThePoolIsBounded) {
  Client runs(http_.address());
  runs.Send("POST /waits HTTP/1.1\r\nHost: h\r\n\r\n");
  door_.WaitForVisitors(1);
  // One waits, the next is refused: whichever comes first.
  Client a(http_.address());
  Client b(http_.address());
  a.Send("POST /waits HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  b.Send("POST /waits HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  std::string answer_a;
  std::string answer_b;
  std::thread reads_a([&] {
    answer_a = a.ReadToEnd();
    door_.Open();
  });
  std::thread reads_b([&] {
    answer_b = b.ReadToEnd();
    door_.Open();
  });
  reads_a.join();
  reads_b.join();
  EXPECT_NE(answer_a.starts_with("HTTP/1.1 503 "), answer_b.starts_with("HTTP/1.1 503 "));
  EXPECT_THAT(runs.ReadUntil("waited"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerBoundsTest, BodiesAreBoundedInSum) {
  // Either is cut off for being slow, perhaps before the other is there: then this takes another
  // turn.
  const std::string most(799'999, 'x');
  std::string answer;
  while (!answer.starts_with("HTTP/1.1 503 ")) {
    Client half(http_.address());
    half.Send("POST /waits HTTP/1.1\r\nHost: h\r\nContent-Length: 800000\r\n\r\n" + most);
    Client other(http_.address());
    other.Send("POST /waits HTTP/1.1\r\nHost: h\r\nContent-Length: 800000\r\n\r\n" + most);
    answer = other.ReadUntil("\r\n\r\n");
  }
  door_.Open();
  answer.clear();
  while (answer.empty()) answer = Ask("POST", "/waits", "", std::string(1000, 'x'));
  EXPECT_THAT(answer, EndsWith("waited"));
}

TEST_F(HttpServerBoundsTest, AnnouncedBodiesTakeNothingFromOthers) {
  std::list<Client> announce;
  door_.Open();
  for (int i = 0; i < 20; ++i) {
    announce.emplace_back(http_.address())
        .Send("POST /waits HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000\r\n\r\nx");
  }
  std::string answer;
  while (answer.empty()) answer = Ask("POST", "/waits", "", std::string(500'000, 'x'));
  EXPECT_THAT(answer, EndsWith("waited"));
}

TEST_F(HttpServerBoundsTest, SlowRequestsAndUnreadPiecesAreCutOff) {
  Client trickles(http_.address());
  trickles.Send("POST /waits HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n");
  while (trickles.Send("x")) {
  }
  // A handler may take as long as it takes. A client that is slow itself is cut off before it has
  // asked, and asks again.
  std::optional<Client> waits;
  do {
    waits.emplace(http_.address());
    waits->Send("POST /waits HTTP/1.1\r\nHost: h\r\n\r\n");
  } while (!Await([&] { return door_.HasVisitors(); }, std::chrono::seconds(5)));
  Client silent(http_.address());
  silent.Send("GET /qu");
  EXPECT_THAT(silent.ReadToEnd(), IsEmpty());  // which takes longer than the time for a request
  door_.Open();
  EXPECT_THAT(waits->ReadUntil("waited"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, StopsWhileEverybodyIsBusy) {
  http_.Handle({.method = "GET", .path = "/waits", .handler = [&](const HttpRequest&) {
                  door_.Enter();
                  return HttpResponse{.body = "waited"};
                }});
  Start();
  std::list<Client> clients;
  for (int i = 0; i < 10; ++i) {
    clients.emplace_back(http_.address()).Send("GET /waits HTTP/1.1\r\nHost: h\r\n\r\n");
  }
  door_.WaitForVisitors(2);  // the others are in the queue
  std::thread stops([&] { http_.Stop(); });
  for (Client& client : clients) EXPECT_THAT(client.ReadToEnd(), IsEmpty());
  door_.Open();
  stops.join();
}

}  // namespace
}  // namespace kvatlas
