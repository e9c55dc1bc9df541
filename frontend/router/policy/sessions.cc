// A list in the order of last use, and an index into it: a hit moves its node to the back (`splice`
// keeps iterators valid), so the front is the next to forget. Sessions that are over by `ttl` stay
// until then; `Find` does not see them.

#include "frontend/router/policy/sessions.h"

#include <iterator>

namespace kvatlas {

const Sessions::CellWorker* Sessions::Find(const Domain& domain, const std::string& session_id,
                                           Time now) const {
  if (session_id.empty()) return nullptr;
  const auto found = by_id_.find(Key(domain, session_id));
  if (found == by_id_.end() || found->second->seen + options_.ttl <= now) return nullptr;
  return &found->second->worker;
}

void Sessions::Went(const Domain& domain, const std::string& session_id, const CellWorker& worker,
                    Time now) {
  if (session_id.empty() || options_.sessions_max == 0) return;
  const Key key(domain, session_id);
  const auto found = by_id_.find(key);
  if (found != by_id_.end()) {
    sessions_.splice(sessions_.end(), sessions_, found->second);
    found->second->worker = worker;
    found->second->seen = now;
    return;
  }
  if (sessions_.size() >= options_.sessions_max) {
    by_id_.erase(sessions_.front().key);
    sessions_.pop_front();
  }
  sessions_.push_back({.key = key, .worker = worker, .seen = now});
  by_id_[key] = std::prev(sessions_.end());
}

}  // namespace kvatlas
