// Recognises requests of a browser that a page of another site sent here, by the Host header, at a
// port that trusts every process which reaches it.
//
// A process without TLS and policy listens on loopback alone, where the machine's browser reaches
// it too. A page's own host name may be made to resolve to 127.0.0.1 once the page runs, and the
// browser then lets it read our answers as its own (DNS rebinding); only the Host header still says
// that name. Allowed are names that no stranger can own: addresses, localhost and what is below it,
// names of one label, the name that the process listens on, and those of --http_names.
//
// *Place*: `HttpServer`, for every route but health. *Threads*: `SetHttpNames` before servers
// start, the rest any.
// *Cost*: a look at a few characters where the host is an address.

#ifndef KVATLAS_INDEXER_NET_HTTP_HOST_H_
#define KVATLAS_INDEXER_NET_HTTP_HOST_H_

#include <string>
#include <string_view>
#include <vector>

namespace kvatlas {

// Sets the names of the whole process; "*" is every name.
void SetHttpNames(std::vector<std::string> names);

// `host` as the header says it, perhaps with a port; empty (HTTP/1.0): allowed.
bool IsOwnHost(std::string_view host, std::string_view listen_host);

// The error text for a refused host.
std::string NotOwnHost(std::string_view host);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_HTTP_HOST_H_
