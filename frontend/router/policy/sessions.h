// Where did this session's last request go?
//
// *Truth*: as this frontend chose; nothing is known of what other frontends did. A session that was
// not heard of for `ttl` is new.
// *Threads*: none; the owner serialises. *Cost*: constant; about 200 bytes a session.
// *Bounds*: `sessions_max`; the one that was not heard of for longest is forgotten.

#ifndef KVATLAS_FRONTEND_ROUTER_POLICY_SESSIONS_H_
#define KVATLAS_FRONTEND_ROUTER_POLICY_SESSIONS_H_

#include <chrono>
#include <cstddef>
#include <list>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"

namespace kvatlas {

struct SessionsOptions {
  size_t sessions_max = 65536;
  Duration ttl = std::chrono::minutes(10);
};

class Sessions {
 public:
  using CellWorker = std::pair<std::string, HolderId>;

  explicit Sessions(const SessionsOptions& options) : options_(options) {}

  // Null: a new session, or an empty id. Valid until the next call.
  const CellWorker* Find(const Domain& domain, const std::string& session_id, Time now) const;

  // An empty id is no session.
  void Went(const Domain& domain, const std::string& session_id, const CellWorker& worker,
            Time now);

  size_t size() const { return by_id_.size(); }

 private:
  using Key = std::pair<Domain, std::string>;
  struct Session {
    Key key;
    CellWorker worker;
    Time seen{0};
  };

  const SessionsOptions options_;
  std::list<Session> sessions_;  // heard of longest ago first
  absl::flat_hash_map<Key, std::list<Session>::iterator> by_id_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_POLICY_SESSIONS_H_
