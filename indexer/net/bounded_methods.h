// Refuses requests of unary and server-streaming methods that would take too much memory once they
// are parsed, whatever the service, before they are parsed: `message_account.h` for calls, as
// `bounded_message.h` is for streams of requests.
//
//   bytes ─▶ ParsedSize ─▶ MessageAccount ─┬▶ the method's own handler ─▶ over: given back
//                                          ╰▶ RESOURCE_EXHAUSTED, counted and logged
//
// *Truth*: a request is charged from its first byte parsed to the end of its call.
// *Cost*: per call a walk over the request's parts (`parsed_size.h`) and some words of the call's
// arena; an allocation where the request is charged.
// *Bounds*: as `MessageAccount`.
//
// Example:
//   BoundMethods(&service);        // before the server starts
//   builder.RegisterService(&service);

#ifndef KVATLAS_INDEXER_NET_BOUNDED_METHODS_H_
#define KVATLAS_INDEXER_NET_BOUNDED_METHODS_H_

#include <string>
#include <vector>

namespace grpc {
class Service;
}  // namespace grpc

namespace kvatlas {

// Of `service` all methods that protobuf knows and that read one message; others, such as those
// that take bytes as they are, stay as they are. Idempotent. REQUIRES: set up, and not serving yet;
// no method of requests in one message and answers in a stream that is of the callback interface.
void BoundMethods(grpc::Service* service);

// The full names of the services that `service` serves: "kvatlas.v1.Leaf".
std::vector<std::string> ServicesOf(grpc::Service* service);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_BOUNDED_METHODS_H_
