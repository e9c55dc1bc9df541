// How does a test get a Redis? A real redis-server of its own, on a port of this host that it keeps
// and in a directory of its own, that can be killed and come back. KVATLAS_REDIS_SERVER in the
// environment names another program than `redis-server`, such as a valkey-server (`bazel test
// --test_env=KVATLAS_REDIS_SERVER=/usr/bin/valkey-server …`).
//
// *Place*: tests, benchmarks and local clusters.
// *Lifetime*: the process dies with its owner, also when that is killed.
//
// Example:
//   RedisTestServer server({"appendonly yes"});
//   RedisClient client(*ParseRedisUrl(server.url()));
//   server.Kill();
//   server.Start();   // the same port, the same directory

#ifndef KVATLAS_TOOLS_TESTING_SERVERS_REDIS_TEST_SERVER_H_
#define KVATLAS_TOOLS_TESTING_SERVERS_REDIS_TEST_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {

class RedisTestServer {
 public:
  // `config`: further lines of its configuration. Nothing is saved unless they say so. Aborts when
  // there is no redis-server or it does not answer. With a line `sentinel monitor …` it is a
  // sentinel.
  explicit RedisTestServer(std::vector<std::string> config = {});
  ~RedisTestServer();

  RedisTestServer(const RedisTestServer&) = delete;
  RedisTestServer& operator=(const RedisTestServer&) = delete;

  // Returns once it answers (with an error, if need be).
  void Start();
  // SIGKILL; returns once it is gone.
  void Kill();
  // SIGTERM: it saves what it is configured to save; returns once it is gone.
  void Terminate();
  // It goes on living and answers nothing.
  void Pause();
  void Resume();

  // Takes effect with the next `Start`.
  void SetConfig(std::vector<std::string> config) { config_ = std::move(config); }

  // A port of this host that is free now, for a line of the configuration.
  static uint16_t FreePort();

  uint16_t port() const { return port_; }
  // "redis://127.0.0.1:PORT"
  std::string url() const { return "redis://127.0.0.1:" + std::to_string(port_); }
  const std::string& directory() const { return directory_; }
  pid_t pid() const { return pid_; }

 private:
  void Launch();
  bool Answers() const;
  void End(int signal);

  std::vector<std::string> config_;
  std::string directory_;
  uint16_t port_ = 0;
  ReservedTestPorts held_;
  pid_t pid_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_SERVERS_REDIS_TEST_SERVER_H_
