// What does a test watch in the place of a Kubernetes API server? EndpointSlices of one namespace,
// listed and watched over real TLS with a CA and a token of its own, whose answers may go wrong by
// a seed.
//
// It follows the API in what a client can see: one version for all objects, lists in pages, events
// in order after the version asked for, 410 Gone for a version whose events it has forgotten,
// bookmarks, an end of each watch.
//
// *Threads*: any.

#ifndef KVATLAS_TOOLS_TESTING_SERVERS_K8S_TEST_SERVER_H_
#define KVATLAS_TOOLS_TESTING_SERVERS_K8S_TEST_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "indexer/discovery/directory.h"

namespace kvatlas {

// How often each goes wrong, from 0 to 1, of the requests or events where it can.
struct K8sFaults {
  double refuse = 0;    // a request is answered 500
  double garbage = 0;   // an answer or a line is no JSON
  double gone = 0;      // a page or a watch is answered 410, or a watch tells so
  double cut = 0;       // a connection ends within a line
  double end = 0;       // a watch ends early
  double repeat = 0;    // an event is told twice
  double bookmark = 0;  // one follows an event
};

class K8sTestServer {
 public:
  // Whether an address is ready.
  using Endpoints = std::vector<std::pair<std::string, bool>>;

  explicit K8sTestServer(size_t page_items = 200);
  ~K8sTestServer();

  // What a source needs to reach it, with short waits.
  K8sOptions options() const;

  void Put(const std::string& service, const std::string& slice, const Endpoints& endpoints);
  void Delete(const std::string& service, const std::string& slice);
  // A pod with the label "app". `ends`: it is being deleted.
  void PutPod(const std::string& app, const std::string& name, const std::string& address,
              bool ready, bool ends = false);
  void DeletePod(const std::string& app, const std::string& name) { Delete(app, name); }
  // Events so far are forgotten: a watch from before now is answered 410.
  void Compact();
  void SetFaults(uint64_t seed, const K8sFaults& faults);
  // Watches end now.
  void EndWatches();
  // Only another token is accepted; the file has it at once, or when `WriteToken` is called.
  void ChangeToken(bool write = true);
  void WriteToken();
  // Every request is answered so; 0: as usual.
  void AnswerAll(int status, const std::string& message = "");

  // What is ready of a Service now, HOST:7410 in order; and every such state that there was.
  std::vector<std::string> Ready(const std::string& service) const;
  std::vector<std::vector<std::string>> History(const std::string& service) const;

  uint64_t lists() const;         // answered in full
  uint64_t watches() const;       // begun
  uint64_t unauthorized() const;  // refused for their token
  std::string last_query() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_SERVERS_K8S_TEST_SERVER_H_
