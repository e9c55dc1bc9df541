// HTTP by TLS, with Debian's curl as the client: which credentials are let in, and until when.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "indexer/base/await.h"
#include "indexer/net/http_exchange.h"
#include "indexer/net/http_server.h"
#include "indexer/security/pki.h"
#include "indexer/security/security.h"
#include "indexer/security/security_test_folder.h"
#include "indexer/security/tokens.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);

class HttpSecurityTest : public testing::Test {
 protected:
  HttpSecurityTest() {
    {
      std::ofstream tokens(folder_.path() + "/tokens");
      tokens << "sha256:" << TokenHash("let-me-in") << " operator/ops name=ops\n";
    }
    SecurityOptions options = folder_.ServerOf(folder_.Issue("leaf/a/0"));
    options.tokens.tokens = folder_.path() + "/tokens";
    security_ = SecurityTestFolder::Start(options);
    server_ = std::make_unique<HttpServer>(HttpServerOptions{
        .listen = {"127.0.0.1", 0}, .header_timeout = kLong, .security = security_});
    server_->Handle({.method = "GET",
                     .path = "/healthz",
                     .quick =
                         [](const HttpRequest&, HttpResponse* response) {
                           response->body = "{}";
                           return true;
                         },
                     .vital = true});
    server_->Handle({.method = "GET", .path = "/status", .handler = [](const HttpRequest& request) {
                       return HttpResponse{.body = request.identity->Text()};
                     }});
    server_->Handle({.method = "POST", .path = "/query", .handler = [](const HttpRequest& request) {
                       return HttpResponse{.body = std::to_string(request.body.size())};
                     }});
    server_->Handle({.method = "GET", .path = "/big", .handler = [](const HttpRequest&) {
                       auto left = std::make_shared<int>(64);
                       return HttpResponse{.body = "", .more = [left](std::string* piece) {
                                             piece->assign(100'000, 'x');
                                             return --*left > 0;
                                           }};
                     }});
    server_->Handle({.method = "GET", .path = "/endless", .handler = [](const HttpRequest&) {
                       return HttpResponse{.body = "", .more = [](std::string* piece) {
                                             piece->assign(100'000, 'x');
                                             return true;
                                           }};
                     }});
    server_->Handle({.method = "GET",
                     .path = "/v1/wait",
                     .stream = [this](std::shared_ptr<HttpExchange> exchange) {
                       exchange->OnGone([this] { ++gone_; });
                       exchange->Begin({.status = 200}, "begun", nullptr);
                       waiting_ = std::move(exchange);
                       ++waits_;
                     }});
    const absl::Status status = server_->Start();
    EXPECT_TRUE(status.ok()) << status;
  }

  ~HttpSecurityTest() override { server_->Stop(); }

  std::string As(const std::string& identity) {
    const TlsPaths paths = folder_.Issue(identity);
    return absl::StrCat("--cert ", paths.certificate, " --key ", paths.key);
  }

  // The output of curl, with the HTTP status as the last line.
  std::string Curl(const std::string& arguments, const std::string& path) const {
    return folder_.Curl("-w '\n%{http_code}' " + arguments,
                        absl::StrCat("https://127.0.0.1:", server_->address().port, path));
  }
  std::string Status(const std::string& arguments, const std::string& path) const {
    const std::string out = Curl(arguments, path);
    return out.substr(out.rfind('\n') + 1);
  }

  // Sends `bytes` in clear and reads to the end.
  std::string Plain(const std::string& bytes) const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(server_->address().port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    std::string out;
    char read_bytes[4096];
    for (ssize_t got; (got = read(fd, read_bytes, sizeof(read_bytes))) > 0;) {
      out.append(read_bytes, static_cast<size_t>(got));
    }
    close(fd);
    return out;
  }

  const SecurityTestFolder folder_{R"("rules": [
      {"identity": "operator/asks", "allow": ["*"],
       "quota": {"queries_per_s": 0.001, "dumps_per_s": 0.001}},
      {"identity": "operator/slow", "allow": ["*"], "quota": {"unread_bytes": 1}},
      {"identity": "operator/*", "allow": ["*"]},
      {"identity": "gateway/single", "allow": ["route"], "quota": {"connections": 1}},
      {"identity": "viewer/*", "allow": ["status"]},
      {"identity": "gateway/*", "allow": ["route"]}])"};
  std::shared_ptr<Security> security_;
  std::unique_ptr<HttpServer> server_;
  std::atomic<int> waits_{0};
  std::atomic<int> gone_{0};
  std::shared_ptr<HttpExchange> waiting_;  // of the server's I/O thread
};

// A caller with a good credential is identified by it.
TEST_F(HttpSecurityTest, AnyHostNameIsTakenUnderAPolicy) {
  EXPECT_EQ(Status(As("operator/me") + " -H 'Host: api.example.org'", "/status"), "200");
}

TEST_F(HttpSecurityTest, RolesDecideWhatIsAnswered) {
  EXPECT_EQ(Curl(As("viewer/v"), "/status"), "viewer/v\n200");
  EXPECT_EQ(Status(As("viewer/v"), "/query -d 1"), "403");
  EXPECT_EQ(Curl(As("operator/o"), "/query -d 12345"), "5\n200");
  EXPECT_EQ(Status(As("operator/o"), "/no_such_path"), "404");
}

TEST_F(HttpSecurityTest, WithoutACredentialHealthAloneIsAnswered) {
  EXPECT_EQ(Status("", "/healthz"), "200");
  EXPECT_EQ(Status("", "/status"), "401");
  const std::string headers = Curl("-D -", "/status");
  EXPECT_NE(headers.find("www-authenticate: Bearer"), std::string::npos) << headers;
}

TEST_F(HttpSecurityTest, ATokenIsACredential) {
  EXPECT_EQ(Curl("-H 'Authorization: Bearer let-me-in'", "/status"), "operator/ops\n200");
  EXPECT_EQ(Status("-H 'Authorization: Bearer let-me-out'", "/status"), "401");
  EXPECT_EQ(Status("-H 'Authorization: Basic let-me-in'", "/status"), "401");
}

TEST_F(HttpSecurityTest, LargeBodiesAndAnswersPassWhole) {
  {
    std::ofstream body(folder_.path() + "/body");
    body << std::string(1'500'000, 'b');
  }
  EXPECT_EQ(
      Curl(As("operator/o") + " -H Expect:100-continue --data-binary @" + folder_.path() + "/body",
           "/query"),
      "1500000\n200");
  const std::string big = Curl(As("operator/o"), "/big");
  EXPECT_EQ(big.size(), 6'400'000 + 4);
  // Two requests on one connection.
  const std::string two =
      absl::StrCat("/status https://127.0.0.1:", server_->address().port, "/status");
  EXPECT_EQ(Curl(As("viewer/v"), two), "viewer/v\n200viewer/v\n200");
}

TEST_F(HttpSecurityTest, ForeignAndExpiredCertificatesAreRefused) {
  absl::StatusOr<Pki> foreign = Pki::Create(folder_.path() + "/foreign", "test.example");
  ASSERT_TRUE(foreign.ok());
  const TlsPaths paths = *foreign->Issue({.identity = "operator/o"});
  EXPECT_EQ(Status(absl::StrCat("--cert ", paths.certificate, " --key ", paths.key), "/status"),
            "000");
  const TlsPaths expired = folder_.Issue("operator/o", {.identity = "", .valid_for_s = 200});
  EXPECT_EQ(Status(absl::StrCat("--cert ", expired.certificate, " --key ", expired.key), "/status"),
            "000");
}

TEST_F(HttpSecurityTest, PlainHttpIsToldToUseTls) {
  const std::string answer = Plain("GET /status HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 400")) << answer;
  EXPECT_NE(answer.find("https://"), std::string::npos) << answer;
}

TEST_F(HttpSecurityTest, NonsenseInTheHandshakeHarmsNothing) {
  Plain(std::string("\x16\x03\x01\x00\x05hello", 10));
  Plain(std::string(5000, '\xff'));
  EXPECT_EQ(Status(As("viewer/v"), "/status"), "200");
}

TEST_F(HttpSecurityTest, ARevokedCredentialIsRefusedAndItsRequestCut) {
  const std::string gateway = As("gateway/g");
  EXPECT_EQ(Status(gateway, "/status"), "403");
  FILE* const waiting =
      popen(absl::StrCat("curl -sS -m 120 --cacert ", folder_.pki().ca_path(), " ", gateway,
                         " https://127.0.0.1:", server_->address().port, "/v1/wait >/dev/null 2>&1")
                .c_str(),
            "r");
  ASSERT_TRUE(Await([&] { return waits_.load() == 1; }, kLong));
  folder_.WritePolicy(R"(["gateway/g", "token:ops"])");
  EXPECT_TRUE(Await([&] { return gone_.load() == 1; }, kLong));
  pclose(waiting);
  const std::string unknown = Curl("-H 'Authorization: Bearer let-me-out'", "/status");
  EXPECT_EQ(unknown.substr(unknown.rfind('\n')), "\n401");
  EXPECT_EQ(Curl(gateway, "/v1/wait"), unknown);
  EXPECT_EQ(Curl("-H 'Authorization: Bearer let-me-in'", "/status"), unknown);
  for (const char* const said :
       {R"("event":"revoked","allowed":false,"identity":"gateway/g","peer":"127.0.0.1")",
        R"("event":"refusal","allowed":false,"identity":"gateway/g","peer":"127.0.0.1")",
        R"("event":"refusal","allowed":false,"identity":"operator/ops","peer":"127.0.0.1")"}) {
    EXPECT_TRUE(Await([&] { return folder_.Audit().find(said) != std::string::npos; }, kLong))
        << said << " is not in " << folder_.Audit();
  }
  EXPECT_EQ(Status(As("viewer/v"), "/status"), "200");
}

TEST_F(HttpSecurityTest, QuotasAreOfAnIdentity) {
  const std::string asks = As("operator/asks");
  EXPECT_EQ(Status(asks, "/status"), "200");
  EXPECT_EQ(Status(asks, "/status"), "429");
  EXPECT_EQ(Status(As("operator/other"), "/status"), "200");
  const std::string url = absl::StrCat(" https://127.0.0.1:", server_->address().port);
  const std::string curl = absl::StrCat("curl -sS -m 120 --cacert ", folder_.pki().ca_path(), " ");
  const std::string single = As("gateway/single");
  FILE* const waiting = popen((curl + single + url + "/v1/wait >/dev/null 2>&1").c_str(), "r");
  ASSERT_TRUE(Await([&] { return waits_.load() == 1; }, kLong));
  EXPECT_EQ(Status(single, "/v1/wait"), "429");
  folder_.WritePolicy(R"(["gateway/single"])");
  EXPECT_TRUE(Await([&] { return gone_.load() == 1; }, kLong));
  pclose(waiting);
}

// Its pipe is not read, so it does not read its connection either; it ends when the pipe is closed.
TEST_F(HttpSecurityTest, AnswersThatAreNotReadEndTheConnection) {
  FILE* const slow =
      popen(absl::StrCat("exec curl -sS -m 120 --cacert ", folder_.pki().ca_path(), " ",
                         As("operator/slow"), " https://127.0.0.1:", server_->address().port,
                         "/endless 2>/dev/null")
                .c_str(),
            "r");
  const auto refused = [&] {
    std::string metrics;
    security_->AppendMetrics(&metrics);
    return metrics.find("kvatlas_quota_refused_total{quota=\"unread_bytes\",of=\"operator\"} 1") !=
           std::string::npos;
  };
  EXPECT_TRUE(Await(refused, kLong));
  server_->Stop();
  pclose(slow);
}

TEST_F(HttpSecurityTest, CertificatesRotateWhileRequestsRun) {
  for (int i = 0; i < 5; ++i) {
    folder_.Issue("leaf/a/0");
    EXPECT_EQ(Status(As("viewer/v"), "/status"), "200") << i;
  }
}

}  // namespace
}  // namespace kvatlas
