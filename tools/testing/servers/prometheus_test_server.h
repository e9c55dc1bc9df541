// How do tests ask a real Prometheus about a real cluster? One that scrapes and judges once a
// second, with the rules that we ship.
//
//   PrometheusTestServer prometheus({.targets = {{"kvatlas-leaf", cluster.address("leaf-0",
//   "http")}}, .rules = rules});
//   ASSERT_TRUE(Await([&] { return prometheus.Fires("KvatlasProcessDown"); },
//   std::chrono::seconds(60)));
//
// *Truth*: what its HTTP interface says; an error ends the test program, as Prometheus is ours to
// start. It dies with the test.
// *Threads*: one.

#ifndef KVATLAS_TOOLS_TESTING_SERVERS_PROMETHEUS_TEST_SERVER_H_
#define KVATLAS_TOOLS_TESTING_SERVERS_PROMETHEUS_TEST_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace kvatlas {

struct PrometheusTarget {
  std::string job;
  std::string address;   // HOST:PORT of its HTTP
  std::string tls = {};  // of it: lines of a tls_config, "ca_file: …\n"; empty: plain HTTP
};

struct PrometheusOptions {
  std::vector<PrometheusTarget> targets;
  std::string rules = {};  // YAML; empty: none
};

struct PrometheusAlert {
  std::map<std::string, std::string> labels;  // alertname, severity, instance, …
  std::map<std::string, std::string> annotations;
  bool firing = false;  // else pending
};

class PrometheusTestServer {
 public:
  // Returns when it answers.
  explicit PrometheusTestServer(PrometheusOptions options);
  ~PrometheusTestServer();

  PrometheusTestServer(const PrometheusTestServer&) = delete;
  PrometheusTestServer& operator=(const PrometheusTestServer&) = delete;

  std::vector<PrometheusAlert> Alerts() const;
  // An alert of that name, with a label of this value if one is given.
  bool Fires(std::string_view name, std::string_view label = "", std::string_view value = "") const;
  // Names of those that fire, once each, for messages.
  std::string Firing() const;
  // Values of an instant query now, by their labels as text. Dies at an expression that Prometheus
  // refuses.
  std::map<std::string, double> Query(const std::string& expression) const;
  // Every target was scraped successfully.
  bool AllUp() const;

 private:
  void Start();
  void WriteConfig() const;
  bool Ready();
  // Its whole answer; empty: it does not take connections.
  std::string Ask(const std::string& path) const;
  nlohmann::json Get(const std::string& path) const;

  const PrometheusOptions options_;
  std::string directory_;
  uint16_t port_ = 0;
  pid_t pid_ = 0;
};

// The rules, fit for a test: what holds for minutes fires within a second, what is counted over
// minutes or hours is counted over `window_s`. Thresholds stay.
std::string ShortenedRules(std::string rules, int window_s = 15);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_SERVERS_PROMETHEUS_TEST_SERVER_H_
