// The certificate, key and CAs of a process, from files that may change while it runs.
//
// PEM files: the certificate with its intermediates, its private key (mode 0640 at most), and the
// CAs that peers' certificates are checked against. `Look` reads files that changed; what is new
// counts only if certificate and key belong together, the certificate is valid now and the CAs can
// be read: else the old ones stay and the reason is returned. Connections made before keep what
// they were made with.
//
// The contexts are OpenSSL's, for HTTP and Redis: TLS 1.3 between processes of ours, 1.2 at the
// least. gRPC reads files itself, does not look whether they fit, and aborts the process where one
// is empty: it is given files in memory, which hold what counts (`AcceptedPaths`).
// A server's context asks for a client's certificate and checks it; a client without one is let in,
// and needs a token. A client's context checks the server's chain; the name is for its user to
// check.
//
// *Threads*: any.

#ifndef KVATLAS_INDEXER_SECURITY_TLS_FILES_H_
#define KVATLAS_INDEXER_SECURITY_TLS_FILES_H_

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/mutex.h"

struct ssl_ctx_st;  // SSL_CTX

namespace kvatlas {

struct TlsPaths {
  std::string certificate = {};
  std::string key = {};
  std::string ca = {};

  bool any() const { return !certificate.empty() || !key.empty() || !ca.empty(); }
};

class TlsFiles {
 public:
  // INVALID_ARGUMENT names the file, what was expected and what was found. A client needs `ca`
  // alone; a server all three.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Read(TlsPaths paths);

  // Reads the files again if any changed. OK with `*changed` false: none did.
  absl::Status Look(bool* changed);

  // Files with what counts now: certificate and key in one, in memory, changed at once. They are
  // those of `Read`'s paths, of all that read the same, and stay as long as the process, since gRPC
  // may read them after this object is gone; what they hold is looked after while it exists.
  TlsPaths AcceptedPaths();
  // Null without a certificate.
  std::shared_ptr<ssl_ctx_st> server() const;
  std::shared_ptr<ssl_ctx_st> client() const;
  // OK: the first certificate of `chain_pem`, with the others as intermediates, is one that a
  // client may use, by the present CAs. UNAUTHENTICATED says why not.
  absl::Status Trusts(std::string_view chain_pem) const;
  // When our own certificate expires; 0 without one.
  int64_t not_after_unix_s() const;

 private:
  struct Loaded {
    std::shared_ptr<ssl_ctx_st> server;
    std::shared_ptr<ssl_ctx_st> client;
    int64_t not_after_unix_s = 0;
    std::string stamp;         // of the three files
    std::string identity_pem;  // certificates, then the key; empty: none
    std::string ca_pem;
  };

  explicit TlsFiles(TlsPaths paths) : paths_(std::move(paths)) {}
  absl::StatusOr<Loaded> Load() const;
  // The files in memory, with what counts now.
  TlsPaths Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TlsPaths paths_;
  mutable Mutex mutex_;
  Loaded loaded_ ABSL_GUARDED_BY(mutex_);
  bool published_ ABSL_GUARDED_BY(mutex_) = false;
};

// The first bytes of a client that asks for TLS, to which every TLS server answers.
std::string TlsClientHello();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_TLS_FILES_H_
