// A redis-server by TLS with a user for each cell, and what may be said in its logs.

#ifndef KVATLAS_TESTS_SECURE_REDIS_TEST_UTIL_H_
#define KVATLAS_TESTS_SECURE_REDIS_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/base/clock.h"
#include "indexer/security/pki.h"
#include "indexer/security/record_keys.h"
#include "indexer/security/secret_file.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"
#include "indexer/transport/redis/redis_link.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {

// Says hello in the log of a cell, until it is destroyed.
class HelloInLog : public SenderLinkObserver {
 public:
  HelloInLog(const RedisLogOptions& options, Hello hello)
      : hello_(std::move(hello)), link_(options) {
    link_.Start(this);
  }
  ~HelloInLog() override { link_.Stop(Duration(0)); }

  void OnConnected() override { link_.Write(hello_); }
  void OnDisconnected(const absl::Status&) override { failed_ = true; }
  void OnUnreachable(const absl::Status&) override { failed_ = true; }
  void OnMessage(ReceiverMessage) override { answered_ = true; }
  void OnWritable() override {}

  bool failed() const { return failed_; }
  bool answered() const { return answered_; }  // by Redis

 private:
  const Hello hello_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> answered_{false};
  RedisLink link_;
};

// A redis-server by TLS with a user for each of two cells, and what a leaf and a publisher are told
// of it.
class SecureRedis {
 public:
  SecureRedis() {
    std::string directory = testing::TempDir() + "/secure_redis_XXXXXX";
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    pki_ = std::make_unique<Pki>(*Pki::Create(directory_ + "/ca", "redis.example"));
    const TlsPaths own = *pki_->Issue({.identity = "operator/redis"});
    client_ = *pki_->Issue({.identity = "leaf/cell-0/-"});
    EXPECT_TRUE(
        WriteFileByRename(directory_ + "/log.key", "the key of the logs of all cells", 0600).ok());
    port_ = RedisTestServer::FreePort();
    server_.Kill();
    std::vector<std::string> config = {
        absl::StrCat("tls-port ", port_), "tls-cert-file " + own.certificate,
        "tls-key-file " + own.key,        "tls-ca-cert-file " + own.ca,
        "tls-auth-clients yes",           "user default off",
        "user admin on >admin ~* +@all"};
    for (const std::string cell : {"cell-0", "cell-9"}) {
      config.push_back("user " + cell + " on >" + cell + " ~{kvatlas:" + cell +
                       ":* ~kvatlas:" + cell +
                       ":* +@stream +@hash +@scripting +@connection +exists +del +unlink +pexpire "
                       "+pttl +time +setnx +get");
    }
    server_.SetConfig(config);
    server_.Start();
  }

  // `key`: a file of `KeyOf`, or empty.
  std::string Url(const std::string& login, bool certificate, const std::string& key) const {
    std::string url = absl::StrCat("rediss://", login, "@127.0.0.1:", port_, "?ca=", client_.ca);
    if (certificate) absl::StrAppend(&url, "&cert=", client_.certificate, "&key=", client_.key);
    if (!key.empty()) absl::StrAppend(&url, "&log_key=", key);
    return url;
  }
  // The key of the cells, or that of a worker.
  std::string KeyOf(const std::string& worker = "") const {
    const std::string cell = directory_ + "/log.key";
    if (worker.empty()) return cell;
    EXPECT_TRUE(RecordKeys::WriteOfWorker(cell, worker, cell + "." + worker).ok());
    return cell + "." + worker;
  }
  // One that is not the fleet's.
  std::string ForeignKey() const {
    const std::string path = directory_ + "/foreign.key";
    EXPECT_TRUE(WriteFileByRename(path, "another key of enough bytes", 0600).ok());
    return path;
  }
  // The URL of a leaf, which no command line shows.
  std::string FileWith(const std::string& url) const {
    const std::string path = directory_ + "/url";
    EXPECT_TRUE(WriteFileByRename(path, url, 0600).ok());
    return "@" + path;
  }
  // What Redis' own audit has.
  std::string AclLog() const {
    const std::string command =
        absl::StrCat("redis-cli -p ", server_.port(), " --user admin --pass admin ACL LOG 2>&1");
    FILE* const pipe = popen(command.c_str(), "r");
    std::string out;
    char bytes[4096];
    for (size_t got; (got = fread(bytes, 1, sizeof(bytes), pipe)) > 0;) out.append(bytes, got);
    pclose(pipe);
    return out;
  }

 private:
  std::string directory_;
  std::unique_ptr<Pki> pki_;
  TlsPaths client_;
  RedisTestServer server_;
  uint16_t port_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_SECURE_REDIS_TEST_UTIL_H_
