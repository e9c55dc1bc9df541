// The encryption of gRPC connections, and the servers that a client trusts.
//
// By the TLS files of a `Security`, which gRPC reads again every second; plain TCP where it has
// none. Replace the files together (a new folder and a changed symlink), so that gRPC does not read
// a certificate with another one's key.
//
// *Truth*: a server asks clients for a certificate and checks it against the CA file; a client
// without one needs a token (`grpc_guard.h`). A client takes a server whose certificate the CA file
// vouches for and that either has a SPIFFE ID of a role that serves (leaf, node, frontend), so that
// a worker's key does not serve, or has no SPIFFE ID and the name or address that was dialled. TLS
// 1.3 between two processes of ours; Debian's gRPC lets others come with 1.2.

#ifndef KVATLAS_INDEXER_NET_GRPC_CREDENTIALS_H_
#define KVATLAS_INDEXER_NET_GRPC_CREDENTIALS_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace kvatlas {

class Security;

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    const std::shared_ptr<Security>& security);
// TLS of one port, which asks no client for a certificate. Both empty: self-signed, of this call.
// INVALID_ARGUMENT: only one of the two, or no certificate and its key in PEM.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeOwnServerCredentials(
    const std::string& certificate, const std::string& key);
// The same object for the same files, so that channels to one target share a connection.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(Security* security);

// OK: a server's certificate with these names is good for `target` (HOST or HOST:PORT). Its chain
// has been checked.
absl::Status CheckServerNames(std::string_view target, const std::vector<std::string>& uris,
                              const std::vector<std::string>& dns,
                              const std::vector<std::string>& ips);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_GRPC_CREDENTIALS_H_
