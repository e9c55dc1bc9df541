#include "indexer/net/http_fetch.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/mutex.h"
#include "indexer/net/http_server.h"

namespace kvatlas {
namespace {

TEST(HttpUrlTest, NamesAnAddressAndABase) {
  const auto shown = [](std::string_view url) {
    const auto parsed = HttpUrl::Parse(url);
    return parsed.ok() ? parsed->address.ToString() + parsed->base : "refused";
  };
  EXPECT_EQ(shown("http://h:8090"), "h:8090");
  EXPECT_EQ(shown("http://h:8090/"), "h:8090");
  EXPECT_EQ(shown("http://h/base/x/"), "h:80/base/x");
  EXPECT_EQ(shown("h:1"), "h:1");
  EXPECT_EQ(shown("https://h/x"), "h:443/x");
  EXPECT_EQ(shown("http://[::1]:7"), "[::1]:7");
  EXPECT_EQ(shown("http://[::1]"), "[::1]:80");
  for (const char* bad : {"ftp://h", "https://", "http://", "http://h:x", "not a url", ""})
    EXPECT_EQ(shown(bad), "refused") << bad;
}

TEST(HttpFetchTest, ABodyComesInPiecesAndWhole) {
  HttpServer server({.listen = {"127.0.0.1", 0}});
  server.Handle({.method = "GET", .path = "/long", .handler = [](const HttpRequest&) {
                   return HttpResponse{.more = [left = 1000](std::string* piece) mutable {
                     *piece += std::string(997, 'x');
                     return --left > 0;
                   }};
                 }});
  server.Handle({.method = "GET", .path = "/short", .handler = [](const HttpRequest& request) {
                   return HttpResponse{.status = 503, .body = request.query};
                 }});
  ASSERT_TRUE(server.Start().ok());
  const std::string url = "http://" + server.address().ToString();
  HttpFetch fetch;
  ASSERT_EQ(fetch.Get(url, "/long").value_or(0), 200);
  EXPECT_EQ(fetch.ReadAll(1 << 20).value_or("").size(), 997000u);
  ASSERT_EQ(fetch.Get(url, "/short?a=b").value_or(0), 503);
  EXPECT_EQ(fetch.ReadAll(100).value_or(""), "a=b");
  ASSERT_EQ(fetch.Get(url, "/long").value_or(0), 200);
  EXPECT_TRUE(absl::IsResourceExhausted(fetch.ReadAll(1000).status()));
  EXPECT_EQ(fetch.Get(url, "/nowhere").value_or(0), 404);
}

// No descriptor can be opened while it is there.
class NoDescriptors {
 public:
  NoDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_{};
};

TEST(HttpFetchTest, WithoutADescriptorItFailsAndLaterItDoesNot) {
  HttpServer server({.listen = {"127.0.0.1", 0}});
  server.Handle({.method = "GET", .path = "/", .handler = [](const HttpRequest&) {
                   return HttpResponse{.body = "x"};
                 }});
  ASSERT_TRUE(server.Start().ok());
  const std::string url = "http://" + server.address().ToString();
  HttpFetch fetch;
  {
    const NoDescriptors none;
    EXPECT_FALSE(fetch.Get(url, "/").ok());
  }
  EXPECT_EQ(fetch.Get(url, "/").value_or(0), 200);
}

TEST(HttpFetchTest, ABodyThatBreaksOffIsAnErrorAndNotAnEnd) {
  HttpServer server({.listen = {"127.0.0.1", 0}});
  server.Handle({.method = "GET", .path = "/", .handler = [](const HttpRequest&) {
                   return HttpResponse{.more = [left = 3](std::string* piece) mutable {
                     if (--left == 0) throw std::runtime_error("broken");
                     *piece += "half";
                     return true;
                   }};
                 }});
  ASSERT_TRUE(server.Start().ok());
  HttpFetch fetch;
  ASSERT_EQ(fetch.Get("http://" + server.address().ToString(), "/").value_or(0), 200);
  EXPECT_TRUE(absl::IsUnavailable(fetch.ReadAll(1 << 20).status()));
}

TEST(HttpFetchTest, WhoIsNotThereOrSilentIsUnavailable) {
  HttpFetchOptions options;
  options.read_timeout = std::chrono::milliseconds(50);
  HttpFetch fetch(options);
  EXPECT_TRUE(absl::IsUnavailable(fetch.Get("http://127.0.0.1:1", "/").status()));
  Mutex mutex;
  CondVar wake;
  bool done = false;
  HttpServer server({.listen = {"127.0.0.1", 0}});
  server.Handle({.method = "GET", .path = "/", .handler = [&](const HttpRequest&) {
                   MutexLock lock(&mutex);
                   while (!done) wake.Wait(&mutex);
                   return HttpResponse{};
                 }});
  ASSERT_TRUE(server.Start().ok());
  const std::string url = "http://" + server.address().ToString();
  EXPECT_TRUE(absl::IsUnavailable(fetch.Get(url, "/").status()));
  HttpFetch patient(
      {.connect_timeout = std::chrono::minutes(1), .read_timeout = std::chrono::minutes(1)});
  std::thread canceller([&] { patient.Cancel(); });
  EXPECT_TRUE(absl::IsCancelled(patient.Get(url, "/").status()));
  canceller.join();
  MutexLock lock(&mutex);
  done = true;
  wake.SignalAll();
}

// Dripped so that no piece is ever late. The drip ends by itself after a minute, for a reader that
// never gives up.
class DripTest : public testing::Test {
 protected:
  DripTest() {
    server_.Handle({.method = "GET", .path = "/", .handler = [this](const HttpRequest&) {
                      return HttpResponse{
                          .more = [this, left = pieces_](std::string* piece) mutable {
                            MutexLock lock(&mutex_);
                            wake_.WaitFor(&mutex_, std::chrono::milliseconds(10));
                            *piece += 'x';
                            return --left > 0;
                          }};
                    }});
    EXPECT_TRUE(server_.Start().ok());
  }

  absl::Status Fetch(const HttpFetchOptions& options) {
    HttpFetch fetch(options);
    const absl::StatusOr<int> status = fetch.Get("http://" + server_.address().ToString(), "/");
    return status.ok() ? fetch.ReadAll(1 << 20).status() : status.status();
  }

  Mutex mutex_;
  CondVar wake_;
  int pieces_ = 6000;  // 10 ms each
  HttpServer server_{{.listen = {"127.0.0.1", 0}}};
};

TEST_F(DripTest, ABodyThatIsTooSlowIsGivenUp) {
  const absl::Status status =
      Fetch({.bytes_per_s_min = 1 << 20, .slow_for = std::chrono::milliseconds(100)});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("1048576 bytes a second"), std::string::npos) << status;
}

TEST_F(DripTest, AFetchEndsAtItsDeadline) {
  // So late that the body has begun by then.
  const absl::Status status = Fetch({.total_timeout = std::chrono::seconds(5)});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("in time"), std::string::npos) << status;
}

TEST_F(DripTest, OneThatIsFastEnoughIsRead) {
  pieces_ = 600;  // for longer than `slow_for`
  const absl::Status status = Fetch({.bytes_per_s_min = 1, .slow_for = std::chrono::seconds(5)});
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace kvatlas
