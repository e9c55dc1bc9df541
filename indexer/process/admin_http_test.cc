#include "indexer/process/admin_http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// A blocking client that sends exactly the given bytes.
class Client {
 public:
  explicit Client(const Address& address) : socket_(io_) {
    socket_.connect({asio::ip::make_address(address.host), address.port});
  }

  // Returns false when the server has gone.
  bool Send(std::string_view bytes) {
    error_code error;
    asio::write(socket_, asio::buffer(bytes.data(), bytes.size()), error);
    return !error;
  }

  std::string ReadToEnd() {
    std::string all;
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

  void HalfClose() { socket_.shutdown(asio::ip::tcp::socket::shutdown_send); }

 private:
  asio::io_context io_;
  asio::ip::tcp::socket socket_;
  std::string pending_;
};

class AdminHttpTest : public ::testing::Test {
 protected:
  explicit AdminHttpTest(AdminHttpOptions options = {.listen = {"127.0.0.1", 0},
                                                     .program = "kvatlas-test",
                                                     .header_timeout = std::chrono::minutes(1)})
      : http_(options, &metrics_) {}

  void Start() { ASSERT_TRUE(http_.Start().ok()); }

  std::string Ask(std::string_view method, std::string_view target, std::string_view body = "") {
    return AskAt(http_.address(), method, target, body);
  }
  static std::string AskAt(const Address& to, std::string_view method, std::string_view target,
                           std::string_view body = "") {
    Client client(to);
    client.Send(std::string(method) + " " + std::string(target) +
                " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + std::string(body));
    return client.ReadToEnd();
  }

  Metrics metrics_;
  AdminHttp http_;
};

TEST_F(AdminHttpTest, HealthFollowsTheProcess) {
  Start();
  EXPECT_NE(http_.address().port, 0);
  EXPECT_THAT(Ask("GET", "/healthz"), StartsWith("HTTP/1.1 503 "));
  http_.SetHealth(Health::kServing);
  EXPECT_THAT(Ask("GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask("GET", "/healthz"), EndsWith("{\"health\":\"serving\"}\n"));
  http_.SetHealth(Health::kStopping);
  EXPECT_THAT(Ask("GET", "/healthz"), StartsWith("HTTP/1.1 503 "));
}

TEST_F(AdminHttpTest, LivesWhileItLoadsAndStops) {
  Start();
  EXPECT_THAT(Ask("GET", "/livez"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask("GET", "/ready"), EndsWith("{\"ready\":false,\"reason\":\"loading\"}\n"));
  http_.SetHealth(Health::kLoading, "no \"leaf\"");
  EXPECT_THAT(Ask("GET", "/ready"), EndsWith("\"reason\":\"no \\\"leaf\\\"\"}\n"));
  http_.SetHealth(Health::kServing);
  EXPECT_THAT(Ask("GET", "/ready"), EndsWith("\r\n\r\n{\"ready\":true}\n"));
  http_.SetHealth(Health::kStopping);
  http_.SetHealth(Health::kServing);  // too late
  EXPECT_THAT(Ask("GET", "/ready"), EndsWith("{\"ready\":false,\"reason\":\"stopping\"}\n"));
  EXPECT_THAT(Ask("GET", "/livez"), EndsWith("\r\n\r\n{\"live\":true}\n"));
}

// Other servers of the process answer alike; nothing is dialled, since `http_` has not started.
TEST_F(AdminHttpTest, IsNotAliveWhileAListenerTakesNoConnections) {
  HttpServer server({.listen = {"127.0.0.1", 0}});
  http_.health()->AddRoutes(&server);
  ASSERT_TRUE(server.Start().ok());
  http_.SetHealth(Health::kServing);
  http_.health()->SetDeaf("127.0.0.1:1 does not greet");
  for (const char* path : {"/livez", "/ready", "/healthz"}) {
    const std::string answer = AskAt(server.address(), "GET", path);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 ")) << path;
    EXPECT_THAT(answer, HasSubstr("does not greet")) << path;
  }
  http_.health()->SetDeaf("");
  EXPECT_THAT(AskAt(server.address(), "GET", "/livez"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(AdminHttpTest, GateHoldsReadinessBack) {
  Readiness gate{.ready = false, .reason = "0 of 1 workers"};
  http_.health()->SetGate([&] { return gate; });
  Start();
  http_.SetHealth(Health::kServing);
  EXPECT_THAT(Ask("GET", "/ready"), EndsWith("\"reason\":\"0 of 1 workers\"}\n"));
  gate.ready = true;
  EXPECT_THAT(Ask("GET", "/ready"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(AdminHttpTest, MetricsAndVersionAreBuiltIn) {
  metrics_.AddCounter("n_total", "N.").Increment(7);
  Start();
  const std::string text = Ask("GET", "/metrics");
  EXPECT_THAT(text, HasSubstr("content-type: text/plain; version=0.0.4"));
  EXPECT_THAT(text, HasSubstr("\nn_total 7\n"));
  EXPECT_THAT(Ask("GET", "/version"),
              EndsWith("{\"program\":\"kvatlas-test\",\"version\":\"0.1.0\"}\n"));
}

TEST_F(AdminHttpTest, UnknownPathAndMethodAreErrorsInJson) {
  Start();
  const std::string unknown = Ask("GET", "/a%22b");
  EXPECT_THAT(unknown, StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(unknown, HasSubstr("content-type: application/json"));
  EXPECT_THAT(unknown, EndsWith("{\"error\":\"no such path: /a\\\"b\"}\n"));
  EXPECT_THAT(Ask("POST", "/healthz"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask("BREW", "/healthz"), StartsWith("HTTP/1.1 405 "));
}

TEST_F(AdminHttpTest, HandlerSeesTheRequest) {
  http_.Handle("POST", "/echo/*", [](const HttpRequest& request) {
    return HttpResponse{.status = 201,
                        .content_type = "text/plain",
                        .body = request.method + "|" + request.path + "|" + request.query + "|" +
                                request.Param("b c").value_or("none") + "|" +
                                request.Param("z").value_or("none") + "|" + request.body};
  });
  http_.Handle("POST", "/echo/fixed", [](const HttpRequest&) { return HttpResponse{}; });
  Start();
  EXPECT_THAT(Ask("POST", "/echo/x%20y/z?a=1&b+c=%2F&b+c=2", "hello"),
              EndsWith("\r\n\r\nPOST|/echo/x y/z|a=1&b+c=%2F&b+c=2|/|none|hello"));
  EXPECT_THAT(Ask("POST", "/echo/fixed", "hello"), EndsWith("\r\n\r\n"));
  EXPECT_THAT(Ask("POST", "/echo"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(AdminHttpTest, HandlerThatThrowsIsAServerError) {
  http_.Handle("GET", "/bad",
               [](const HttpRequest&) -> HttpResponse { throw std::runtime_error("no luck"); });
  Start();
  EXPECT_THAT(Ask("GET", "/bad"), StartsWith("HTTP/1.1 500 "));
  EXPECT_THAT(Ask("GET", "/version"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(AdminHttpTest, HeadIsGetWithoutABody) {
  Start();
  const std::string reply = Ask("HEAD", "/version");
  EXPECT_THAT(reply, HasSubstr("content-length: 45\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\n\r\n"));
}

TEST_F(AdminHttpTest, ConnectionIsKeptAndPipelinedRequestsAreAnsweredInOrder) {
  Start();
  Client client(http_.address());
  client.Send("GET /version HTTP/1.1\r\nHost: h\r\n\r\nGET /healthz HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("}\n"), HasSubstr("kvatlas-test"));
  EXPECT_THAT(client.ReadUntil("}\n"), HasSubstr("loading"));
  client.Send("GET /version HTTP/1.0\r\n\r\n");
  EXPECT_THAT(client.ReadToEnd(), HasSubstr("kvatlas-test"));  // 1.0 ends the connection
}

TEST_F(AdminHttpTest, RequestInPiecesIsOneRequest) {
  Start();
  Client client(http_.address());
  for (const char c :
       std::string("GET /version HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")) {
    client.Send(std::string(1, c));
  }
  EXPECT_THAT(client.ReadToEnd(), StartsWith("HTTP/1.1 200 "));
}

TEST_F(AdminHttpTest, NonsenseGets400AndHarmsNobody) {
  Start();
  for (const std::string& nonsense :
       {std::string("\x16\x03\x01\x02\x00 TLS hello\r\n\r\n"), std::string("GET\r\n\r\n"),
        std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("GET nowhere HTTP/1.1\r\nHost: h\r\n\r\n"),
        std::string("GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n"),
        std::string("GET /%4 HTTP/1.1\r\nHost: h\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    Client client(http_.address());
    client.Send(nonsense);
    client.HalfClose();
    EXPECT_THAT(client.ReadToEnd(), StartsWith("HTTP/1.1 400 ")) << nonsense;
  }
  EXPECT_THAT(Ask("GET", "/version"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(AdminHttpTest, ClientThatLeavesHalfwayHarmsNobody) {
  Start();
  for (const char* part :
       {"", "GET /ver", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc"}) {
    Client client(http_.address());
    client.Send(part);
    client.HalfClose();
    EXPECT_THAT(client.ReadToEnd(), IsEmpty()) << part;
  }
  EXPECT_THAT(Ask("GET", "/version"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(AdminHttpTest, StopCutsIdleConnectionsAndIsIdempotent) {
  Start();
  Client idle(http_.address());
  idle.Send("GET /version HTTP/1.1\r\nHost: h\r\n\r\n");
  idle.ReadUntil("}\n");
  Client halfway(http_.address());
  halfway.Send("GET /ver");
  http_.Stop();
  http_.Stop();
  EXPECT_THAT(idle.ReadToEnd(), IsEmpty());
  EXPECT_THAT(halfway.ReadToEnd(), IsEmpty());
}

TEST_F(AdminHttpTest, ManyClientsAtOnce) {
  Start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) EXPECT_THAT(Ask("GET", "/version"), StartsWith("HTTP/1.1 200 "));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(AdminHttpTest, PortInUseIsNamed) {
  Start();
  AdminHttp second({.listen = http_.address(), .program = "second"}, &metrics_);
  const absl::Status status = second.Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(http_.address().ToString()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("in use"));
}

TEST_F(AdminHttpTest, StoppedServersPortCanBeTakenAgain) {
  Start();
  EXPECT_THAT(Ask("GET", "/version"), StartsWith("HTTP/1.1 200 "));
  http_.Stop();
  AdminHttp second({.listen = http_.address(), .program = "second"}, &metrics_);
  EXPECT_TRUE(second.Start().ok());
}

TEST(HttpErrorTest, StatusCodesMap) {
  EXPECT_EQ(HttpError(absl::NotFoundError("x")).status, 404);
  EXPECT_EQ(HttpError(absl::OutOfRangeError("x")).status, 400);
  EXPECT_EQ(HttpError(absl::UnavailableError("x")).status, 503);
  EXPECT_EQ(HttpError(absl::DataLossError("x")).status, 500);
}

// Small bounds, so that each is reached.
class AdminHttpBoundsTest : public AdminHttpTest {
 protected:
  AdminHttpBoundsTest()
      : AdminHttpTest({.listen = {"127.0.0.1", 0},
                       .program = "kvatlas-test",
                       .header_bytes_max = 256,
                       .body_bytes_max = 1000,
                       .connections_max = 2,
                       .idle_timeout = std::chrono::milliseconds(100),
                       .request_timeout = std::chrono::milliseconds(100)}) {
    http_.Handle("POST", "/size", [](const HttpRequest& request) {
      return HttpResponse{.body = std::to_string(request.body.size())};
    });
    http_.Handle("GET", "/large", [](const HttpRequest&) {
      return HttpResponse{.body = std::string(64 << 20, 'x')};
    });
    Start();
  }

  // A slow client is cut off before it has asked, and asks again; so does one that came when both
  // connections were taken.
  std::string Ask(std::string_view method, std::string_view target, std::string_view body = "") {
    std::string answer;
    while (answer.empty() || answer.starts_with("HTTP/1.1 503 "))
      answer = AdminHttpTest::Ask(method, target, body);
    return answer;
  }
};

TEST_F(AdminHttpBoundsTest, LargeHeaderGets431) {
  EXPECT_THAT(Ask("GET", "/" + std::string(10'000, 'a')), StartsWith("HTTP/1.1 431 "));
}

TEST_F(AdminHttpBoundsTest, LargeBodyGets413) {
  EXPECT_THAT(Ask("POST", "/size", std::string(1000, 'a')), EndsWith("\r\n\r\n1000"));
  EXPECT_THAT(Ask("POST", "/size", std::string(1001, 'a')), StartsWith("HTTP/1.1 413 "));
}

TEST_F(AdminHttpBoundsTest, LargeChunkedBodyGets413) {
  std::string answer;
  while (answer.empty()) {
    Client client(http_.address());
    client.Send("POST /size HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" +
                std::string(0x800, 'a') + "\r\n0\r\n\r\n");
    answer = client.ReadToEnd();
  }
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 413 "));
}

TEST_F(AdminHttpBoundsTest, SilentClientIsCutOff) {
  Client client(http_.address());
  EXPECT_THAT(client.ReadToEnd(), IsEmpty());
  Client halfway(http_.address());
  halfway.Send("GET /version HTTP/1.1\r\nHost: h\r\n");
  EXPECT_THAT(halfway.ReadToEnd(), IsEmpty());
}

TEST_F(AdminHttpBoundsTest, TricklingClientIsCutOff) {
  Client client(http_.address());
  // Each byte is in time, the request as a whole is not: without an end this would run forever.
  client.Send("GET /");
  while (client.Send("a")) {
  }
  EXPECT_THAT(Ask("GET", "/version"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(AdminHttpBoundsTest, ClientThatReadsNothingIsCutOffAndServesOthers) {
  Client client(http_.address());
  client.Send("GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
  client.ReadUntil("\r\n\r\n");  // and no further
  EXPECT_THAT(Ask("GET", "/version"), StartsWith("HTTP/1.1 200 "));
  // Its slot comes back, though it never reads and never closes.
  std::string answer;
  while (answer.empty()) {
    Client second(http_.address());
    second.Send("GET /version HTTP/1.1\r\nHost: h\r\n\r\n");
    answer = second.ReadUntil("}\n");
    if (answer.starts_with("HTTP/1.1 503 ")) answer.clear();
  }
  EXPECT_THAT(answer, HasSubstr("200"));
  EXPECT_THAT(Ask("GET", "/version"), StartsWith("HTTP/1.1 200 "));
}

// With all the time that others have.
class AdminHttpTwoConnectionsTest : public AdminHttpTest {
 protected:
  AdminHttpTwoConnectionsTest()
      : AdminHttpTest({.listen = {"127.0.0.1", 0},
                       .program = "kvatlas-test",
                       .connections_max = 2,
                       .header_timeout = std::chrono::minutes(1)}) {
    Start();
  }
};

TEST_F(AdminHttpTwoConnectionsTest, ConnectionsAboveTheBoundAreClosed) {
  Client first(http_.address());
  Client second(http_.address());
  first.Send("GET /version HTTP/1.1\r\nHost: h\r\n\r\n");
  second.Send("GET /version HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(first.ReadUntil("}\n"), Not(IsEmpty()));
  EXPECT_THAT(second.ReadUntil("}\n"), Not(IsEmpty()));
  Client third(http_.address());
  EXPECT_THAT(third.ReadToEnd(), IsEmpty());
}

}  // namespace
}  // namespace kvatlas
