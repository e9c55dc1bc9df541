// The I/O loop of this thread, and the tenants that live on it: connections to other services, for
// example, so that a request asks them on its own thread and the answer comes without a hand-over.
//
//   thread of an HttpServer:  Enter ─▶ handlers …  Current()->io() ─▶ … CloseTenants ─▶ pending operations end ─▶ join
//
// *Threads*: `Current` any; the rest that of the loop, but `Enter` before it runs anything.
// *Lifetime*: tenants go with the loop; after `CloseTenants` none is taken.

#ifndef KVATLAS_INDEXER_NET_IO_LOOP_H_
#define KVATLAS_INDEXER_NET_IO_LOOP_H_

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

namespace kvatlas {

class IoLoop {
 public:
  class Tenant {
   public:
    virtual ~Tenant() = default;
    // Ends what it has pending, so that the loop can end.
    virtual void Close() = 0;
  };

  explicit IoLoop(boost::asio::io_context* io) : io_(io) {}

  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;

  // Null: this thread runs none.
  static IoLoop* Current() { return current_; }
  // This thread is the loop's from now on, until it ends.
  void Enter() { current_ = this; }

  boost::asio::io_context& io() { return *io_; }
  bool closed() const { return closed_; }

  // Null: none of that key. Keys: `NewKey`.
  Tenant* Find(uint64_t key) const {
    const auto found = tenants_.find(key);
    return found == tenants_.end() ? nullptr : found->second.get();
  }
  // REQUIRES: not closed.
  void Add(uint64_t key, std::unique_ptr<Tenant> tenant) { tenants_[key] = std::move(tenant); }
  void CloseTenants() {
    closed_ = true;
    for (const auto& [key, tenant] : tenants_) tenant->Close();
  }

  // Never given twice.
  static uint64_t NewKey();

 private:
  static inline thread_local IoLoop* current_ = nullptr;

  boost::asio::io_context* const io_;
  bool closed_ = false;
  std::map<uint64_t, std::unique_ptr<Tenant>> tenants_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_IO_LOOP_H_
