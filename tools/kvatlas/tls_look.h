// Reads the certificate that a server shows over TLS, and what is wrong with it.
//
// *Truth*: the handshake goes on whatever the certificate says, so that everything wrong with it
// can be told. A server that asks for a client's certificate gets none.
// *Threads*: any. *Cost*: one connection, within `timeout`.

#ifndef KVATLAS_TOOLS_KVATLAS_TLS_LOOK_H_
#define KVATLAS_TOOLS_KVATLAS_TLS_LOOK_H_

#include <string>

#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/security/identity.h"

namespace kvatlas {

struct TlsLook {
  absl::Status connected;   // over TCP
  bool speaks_tls = false;  // else the rest is empty
  CertificateNames names;   // of the server's certificate
  std::string
      chain_error;  // by `ca_path`, in OpenSSL's words; empty: it is good, or there was no CA to check it by
  absl::Status name;  // whether the certificate is good for this address
};

// `ca_path` may be empty.
TlsLook LookAtTls(const Address& to, const std::string& ca_path, Duration timeout);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_TLS_LOOK_H_
