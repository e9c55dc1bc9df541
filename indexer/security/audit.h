// The audit log: the decisions that were made about identities, a JSON line each, in a file of its
// own.
//
//   {"time":"2026-11-24T11:40:00.123Z","process":"kvatlas-leaf","event":"hello","allowed":false,"identity":"worker/a/7",
//    "peer":"10.0.0.7","verb":"publish","target":"holder=8 cell=a","reason":"…"}
// Events: hello, register, unregister, snapshot, explain, reload, takeover, refusal, quota,
// revoked, lost. No token, hash, token id or prompt text is ever an argument.
//
// *Threads*: any; `Write` never blocks: lines wait in a bounded queue for a thread that writes
// them; a full queue drops the line and counts it, and the next line that is written says how many
// were lost. A file that was renamed (logrotate) is opened anew within a second; it is made with
// mode 0600. A FIFO that is full or that has no reader holds up nothing either, not even the end of
// the process: lines wait for it in the queue, and what it has not taken by then is lost.

#ifndef KVATLAS_INDEXER_SECURITY_AUDIT_H_
#define KVATLAS_INDEXER_SECURITY_AUDIT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvatlas {

struct AuditLine {
  std::string_view event;
  bool allowed = true;
  std::string_view identity;
  std::string_view peer = {};
  std::string_view verb = {};
  std::string_view target = {};
  std::string_view reason = {};
};

class AuditLog {
 public:
  // An empty path: nothing is written anywhere. UNAVAILABLE, if the file cannot be opened; a FIFO
  // may get its reader later.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path,
                                                        std::string process);
  virtual ~AuditLog() = default;  // writes what waits
  virtual void Write(const AuditLine& line) = 0;
  virtual uint64_t lines() const = 0;    // taken
  virtual uint64_t dropped() const = 0;  // for want of room
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_AUDIT_H_
