// Redis by TLS: a real redis-server with certificates of a CA; which clients it lets in, and which
// servers the client accepts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/base/mutex.h"
#include "indexer/net/redis_client.h"
#include "indexer/net/redis_url.h"
#include "indexer/security/pki.h"
#include "indexer/security/tls_files.h"
#include "tools/testing/servers/redis_test_server.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;

constexpr std::chrono::seconds kLong(60);

class RedisTlsTest : public testing::Test {
 protected:
  RedisTlsTest() {
    std::string directory = testing::TempDir() + "/redis_tls_XXXXXX";
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    pki_ = MakePki("ca");
    server_files_ = Issue(*pki_, "operator/redis", {"127.0.0.1"});
    server_ = std::make_unique<RedisTestServer>();
    server_->Kill();
    // The plain port stays, for the test server's own questions.
    server_->SetConfig(
        {absl::StrCat("tls-port ", tls_address_.port), "tls-cert-file " + server_files_.certificate,
         "tls-key-file " + server_files_.key, "tls-ca-cert-file " + server_files_.ca,
         "tls-auth-clients yes", "user cell on >secret allkeys +@all", "user default off"});
    server_->Start();
    client_files_ = Issue(*pki_, "leaf/a/-", {});
  }

  std::unique_ptr<Pki> MakePki(const std::string& name) {
    absl::StatusOr<Pki> pki = Pki::Create(directory_ + "/" + name, "test.example");
    EXPECT_TRUE(pki.ok()) << pki.status();
    return std::make_unique<Pki>(*std::move(pki));
  }

  static TlsPaths Issue(const Pki& pki, const std::string& identity, std::vector<std::string> ips) {
    absl::StatusOr<TlsPaths> paths =
        pki.Issue({.identity = identity, .dns = {}, .ips = std::move(ips)});
    EXPECT_TRUE(paths.ok()) << paths.status();
    return paths.ok() ? *paths : TlsPaths();
  }

  std::string Url(const TlsPaths& files, const std::string& host = "127.0.0.1") const {
    std::string url =
        absl::StrCat("rediss://cell:secret@", host, ":", tls_address_.port, "?ca=", files.ca);
    if (!files.certificate.empty())
      absl::StrAppend(&url, "&cert=", files.certificate, "&key=", files.key);
    return url;
  }

  // However slow both sides are, no time runs out.
  static absl::StatusOr<RedisOptions> Patient(const std::string& url, Duration patience = kLong) {
    absl::StatusOr<RedisOptions> options = ParseRedisUrl(url);
    if (options.ok()) options->connect_timeout = options->command_timeout = patience;
    return options;
  }

  // The error of the first attempt.
  absl::Status Try(const std::string& url, Duration patience = kLong) {
    absl::StatusOr<RedisOptions> options = Patient(url, patience);
    if (!options.ok()) return options.status();
    Mutex mutex;
    absl::Status first = absl::UnknownError("nothing yet");
    std::atomic<bool> told{false};
    RedisClient client(*options, [&](const absl::Status& state) {
      MutexLock lock(&mutex);
      if (!told) first = state;
      told = true;
    });
    EXPECT_TRUE(Await([&] { return told.load(); }, kLong));
    client.Stop();
    MutexLock lock(&mutex);
    return first;
  }

  std::string directory_;
  std::unique_ptr<Pki> pki_;
  TlsPaths server_files_;
  TlsPaths client_files_;
  ReservedTestPorts held_;
  const Address tls_address_ = held_.HoldAny();
  std::unique_ptr<RedisTestServer> server_;
};

TEST_F(RedisTlsTest, ValuesOfEverySizeComeBack) {
  const absl::StatusOr<RedisOptions> options = Patient(Url(client_files_));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(RedisHosts(*options), absl::StrCat("rediss://127.0.0.1:", tls_address_.port));
  RedisClient client(*options);
  for (const size_t size : {0u, 1u, 16383u, 16384u, 16385u, 1u << 20, 5u << 20}) {
    const std::string value(size, static_cast<char>('a' + size % 26));
    const auto set = client.Call({"SET", "k", value});
    ASSERT_TRUE(set.ok()) << set.status();
    const auto got = client.Call({"GET", "k"});
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->text, value) << size;
  }
  // Many at once, in order.
  Mutex mutex;
  std::vector<std::string> answers;
  for (int i = 0; i < 5000; ++i) {
    const absl::Status sent =
        client.Send({"ECHO", std::to_string(i)}, [&](const absl::StatusOr<RedisReply>& reply) {
          MutexLock lock(&mutex);
          answers.push_back(reply.ok() ? reply->text : reply.status().ToString());
        });
    ASSERT_TRUE(sent.ok()) << sent;
  }
  EXPECT_TRUE(Await(
      [&] {
        MutexLock lock(&mutex);
        return answers.size() == 5000;
      },
      kLong));
  MutexLock lock(&mutex);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(answers[static_cast<size_t>(i)], std::to_string(i));
}

TEST_F(RedisTlsTest, WhoIsNotProvedIsNotSpokenTo) {
  EXPECT_TRUE(Try(Url(client_files_)).ok()) << Try(Url(client_files_));
  // A client of another CA, or of none, at the server.
  const std::unique_ptr<Pki> other = MakePki("other");
  TlsPaths foreign = Issue(*other, "leaf/a/-", {});
  foreign.ca = client_files_.ca;
  EXPECT_EQ(Try(Url(foreign)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Try(Url({.ca = client_files_.ca})).code(), absl::StatusCode::kUnavailable);
  // A server of another CA, or of another name: the client sends no password.
  TlsPaths wrong_ca = client_files_;
  wrong_ca.ca = other->ca_path();
  const absl::Status unknown = Try(Url(wrong_ca));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("certificate")) << unknown;
  const absl::Status name = Try(Url(client_files_, "localhost"));
  EXPECT_THAT(std::string(name.message()), HasSubstr("mismatch")) << name;
  // A server that does not speak TLS: it waits for the end of a line.
  const std::string plain =
      absl::StrCat("rediss://cell:secret@127.0.0.1:", server_->port(), "?ca=", client_files_.ca);
  EXPECT_EQ(Try(plain, std::chrono::seconds(1)).code(), absl::StatusCode::kUnavailable);
  // One that waits for TLS is not answered in clear.
  EXPECT_FALSE(Try(absl::StrCat("redis://cell:secret@127.0.0.1:", tls_address_.port)).ok());
}

TEST_F(RedisTlsTest, AConnectionThatIsLostComesBackWithTheCertificateOfNow) {
  const absl::StatusOr<RedisOptions> options = Patient(Url(client_files_));
  ASSERT_TRUE(options.ok()) << options.status();
  RedisClient client(*options);
  ASSERT_TRUE(client.Call({"PING"}).ok());
  // The same paths, another serial.
  EXPECT_EQ(Issue(*pki_, "leaf/a/-", {}).certificate, client_files_.certificate);
  server_->Kill();
  server_->Start();
  EXPECT_TRUE(Await([&] { return client.Call({"PING"}).ok(); }, kLong));
}

}  // namespace
}  // namespace kvatlas
