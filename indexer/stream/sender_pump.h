// Moves messages between a `StreamSender` and its `SenderLink`: it serialises the state machine,
// writes what is due while the link takes it, and feeds back what arrives.
//
// *Place*: a publisher owns one per leaf address, a leaf (or a hierarchy node) one per parent.
// *Threads*: any; no thread of its own. The owner calls `Tick` at least every
// `SenderOptions::heartbeat_every`, better every 100 ms.
// *Lifetime*: `resident` is read under `resident_mutex` while messages are made (snapshots), so the
// owner changes it under that mutex, and calls `Append` while still holding it, so that all pumps
// see one order.

#ifndef KVATLAS_INDEXER_STREAM_SENDER_PUMP_H_
#define KVATLAS_INDEXER_STREAM_SENDER_PUMP_H_

#include <memory>
#include <optional>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/stream/link.h"
#include "indexer/stream/sender.h"

namespace kvatlas {

class SenderPump : private SenderLinkObserver {
 public:
  SenderPump(const SenderOptions& options, SenderIdentity identity, const ResidentSet* resident,
             Mutex* resident_mutex, std::unique_ptr<SenderLink> link, const Clock* clock);
  ~SenderPump() override;

  void Start();

  // Queues events that `resident` reflects; writes nothing yet. REQUIRES: `resident_mutex` held.
  void Append(const std::vector<Event>& events, const std::optional<Load>& load);

  // Likewise: the holdings are uncertain, or certain again.
  void SetDegraded(bool degraded);

  // The resident set's cache classes changed (`StreamSender::NoteLayout`). REQUIRES:
  // `resident_mutex` held.
  void NoteLayout();

  // Writes what is due. REQUIRES: `resident_mutex` not held.
  void Flush();
  // Time passes; also flushes.
  void Tick();

  // Says goodbye (when asked to) and ends the link.
  void Stop(bool goodbye, Duration flush_for);

  bool connected() const;
  bool welcomed() const;
  bool AtRest() const;
  BatchNumber last_number() const;
  BatchNumber acknowledged() const;
  SenderStats stats() const;
  // Not OK: the sender was refused for good.
  absl::Status status() const;
  // `StreamSender::refusal`.
  absl::Status refusal() const;
  // Either of them.
  absl::Status WhyRefused() const;
  // How far the stream is. Nothing: it is being connected. OK: welcomed. UNAVAILABLE: the receiver
  // is not reached, in words of the link. Any other: the receiver refuses, and why.
  std::optional<absl::Status> Progress() const;
  // Why a welcomed connection ended since the last call; nothing: none did.
  std::optional<absl::Status> TakeLost();

  // Blocks until everything appended before is acknowledged, or the timeout; true when it is.
  bool WaitAtRest(Duration timeout);

 private:
  void OnConnected() override;
  void OnDisconnected(const absl::Status& why) override;
  void OnUnreachable(const absl::Status& why) override;
  void OnMessage(ReceiverMessage message) override;
  void OnWritable() override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_STREAM_SENDER_PUMP_H_
