// A `SenderLink` over a `StreamAcceptor` in the same process, without sockets and without threads:
// messages wait in two bounded queues until they are run.
//
// *Place*: tests and simulations, where every step is to be seen; programs that embed both ends.
// *Threads*: `Write`, `Reset` and replies from any. `Run` delivers, to both sides, on the caller's
// thread, one at a time.
// *Bounds*: `messages_max` each way. A full queue makes `Write` return false; replies beyond it end
// the connection, as a reader that does not read would.
//
// Example:
//   InProcessLink link(&registry);
//   link.Start(&observer);
//   while (link.Run()) {}   // until nothing moves any more

#ifndef KVATLAS_INDEXER_TRANSPORT_IN_PROCESS_LINK_H_
#define KVATLAS_INDEXER_TRANSPORT_IN_PROCESS_LINK_H_

#include <chrono>
#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"

namespace kvatlas {

class InProcessLink : public SenderLink {
 public:
  // `acceptor` outlives the link.
  explicit InProcessLink(StreamAcceptor* acceptor, size_t messages_max = 64);
  ~InProcessLink() override;

  void Start(SenderLinkObserver* observer) override;
  bool Write(const SenderMessage& message) override;
  void Reset() override;
  // Delivers queued messages to the receiver first, unless `flush_for` is zero.
  void Stop(std::chrono::nanoseconds flush_for) override;

  // Connects when that is due, then delivers what is queued both ways. True when anything happened.
  // Not after `Stop`.
  bool Run();

 private:
  struct Replies;

  bool Deliver();
  bool DeliverReplies();
  void Disconnect(const absl::Status& why);

  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_IN_PROCESS_LINK_H_
