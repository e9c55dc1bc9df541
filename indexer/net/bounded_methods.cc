// `BoundedHandler` stands before a method's own handler. gRPC gives it the bytes (`Deserialize`),
// then runs it (`RunHandler`) with what it returned, on the same thread or another.

#include "indexer/net/bounded_methods.h"

#include <google/protobuf/descriptor.h>
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/net/grpc_status.h"
#include "indexer/net/message_account.h"
#include "indexer/net/parsed_size.h"

namespace kvatlas {
namespace {

using grpc::internal::MethodHandler;
using grpc::internal::RpcMethod;
using grpc::internal::RpcServiceMethod;

// gRPC 1.51 lets a handler be replaced, and then destroys the one before; nothing lets one be put
// in front of another. An explicit instantiation may name private members: with a version of gRPC
// that has others this does not compile.
using Methods = std::vector<std::unique_ptr<RpcServiceMethod>>;
using Handler = std::unique_ptr<MethodHandler>;
Methods& MethodsOf(grpc::Service& service);
Handler& HandlerOf(RpcServiceMethod& method);

template <Methods grpc::Service::* kMethods, Handler RpcServiceMethod::* kHandler>
struct Opened {
  friend Methods& MethodsOf(grpc::Service& service) { return service.*kMethods; }
  friend Handler& HandlerOf(RpcServiceMethod& method) { return method.*kHandler; }
};
template struct Opened<&grpc::Service::methods_, &RpcServiceMethod::handler_>;

// One call between `Deserialize` and `RunHandler`, in its arena.
struct Asked {
  void* request = nullptr;  // as the inner handler returned it
  void* data = nullptr;     // likewise, of the callback interface
  grpc::Status status = {};
  bool refused = false;
  MessageAccount::Charge charge = {};
};

class BoundedHandler : public MethodHandler {
 public:
  BoundedHandler(std::string method, const MessageShape& shape, bool callback, Handler inner)
      : method_(std::move(method)), shape_(shape), callback_(callback), inner_(std::move(inner)) {}

  // `bytes` are ours; null: the client sent no message. `data` is null but for callbacks.
  void* Deserialize(grpc_call* call, grpc_byte_buffer* bytes, grpc::Status* status,
                    void** data) override {
    auto* const asked =
        new (grpc::g_core_codegen_interface->grpc_call_arena_alloc(call, sizeof(Asked))) Asked;
    if (data != nullptr) *data = asked;
    if (absl::Status refused = Admit(bytes, asked); refused.ok()) {
      asked->request = inner_->Deserialize(call, bytes, &asked->status, &asked->data);
    } else {
      asked->refused = true;
      asked->status = ToGrpcStatus(refused);
      grpc_byte_buffer_destroy(bytes);
      if (callback_) asked->request = Instead(call, refused, &asked->data);
    }
    // Not the status of the request: `RunHandler` has that.
    *status = grpc::Status::OK;
    return asked;
  }

  void RunHandler(const HandlerParameter& call) override {
    auto* const in_arena = static_cast<Asked*>(call.request);
    Asked asked = std::move(*in_arena);
    in_arena->~Asked();
    if (asked.refused)
      LogRefusedMessage(method_, call.server_context->peer(), FromGrpcStatus(asked.status));
    // gRPC would turn any bad status of a callback's request into UNIMPLEMENTED.
    const bool instead = asked.refused && callback_;
    MethodHandler* const handler = instead ? &instead_ : inner_.get();
    handler->RunHandler({call.call, call.server_context, asked.request,
                         instead ? grpc::Status::OK : asked.status, asked.data,
                         AtEnd(call.call_requester, &asked.charge)});
  }

 private:
  using Bytes = grpc::ByteBuffer;

  absl::Status Admit(const grpc_byte_buffer* bytes, Asked* asked) const {
    if (bytes == nullptr) return absl::OkStatus();
    WireBytes wire(*bytes);
    absl::StatusOr<MessageAccount::Charge> charge = AdmitMessage(shape_, &wire, /*charged=*/true);
    if (!charge.ok()) return charge.status();
    asked->charge = *std::move(charge);
    return absl::OkStatus();
  }

  // The request of `instead_`: what it answers.
  void* Instead(grpc_call* call, const absl::Status& refused, void** data) {
    grpc_slice text =
        grpc_slice_from_copied_buffer(refused.message().data(), refused.message().size());
    grpc_byte_buffer* const bytes = grpc_raw_byte_buffer_create(&text, 1);
    grpc_slice_unref(text);
    grpc::Status read;
    return instead_.Deserialize(call, bytes, &read, data);
  }

  static grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, const Bytes* why) {
    grpc::Slice text;
    std::string message;
    if (why->TrySingleSlice(&text).ok())
      message.assign(reinterpret_cast<const char*>(text.begin()), text.size());
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, message});
    return reactor;
  }

  // gRPC calls `then` when a callback's call is over and its messages are gone. Synchronous calls
  // have none: theirs are over when the handler returns, and the charge with `Asked`.
  static std::function<void()> AtEnd(const std::function<void()>& then,
                                     MessageAccount::Charge* charge) {
    if (then == nullptr || !charge->charged()) return then;
    return [then, held = std::make_shared<MessageAccount::Charge>(std::move(*charge))] {
      *held = {};
      then();
    };
  }

  const std::string method_;
  const MessageShape& shape_;
  const bool callback_;
  const Handler inner_;
  grpc::internal::CallbackUnaryHandler<Bytes, Bytes> instead_{
      [](grpc::CallbackServerContext* context, const Bytes* why, Bytes*) {
        return Refuse(context, why);
      }};
};

// "/kvatlas.v1.Leaf/Stats" → kvatlas.v1.Leaf.Stats; null: protobuf does not know it.
const google::protobuf::MethodDescriptor* DescriptorOf(const RpcServiceMethod& method) {
  std::string name(method.name());
  if (!name.empty()) name.erase(0, 1);
  const size_t slash = name.find('/');
  if (slash != std::string::npos) name[slash] = '.';
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
}

}  // namespace

std::vector<std::string> ServicesOf(grpc::Service* service) {
  std::vector<std::string> names;
  for (const std::unique_ptr<RpcServiceMethod>& method : MethodsOf(*service)) {
    if (method == nullptr) continue;
    std::string name(method->name() + 1);
    name.erase(name.find('/'));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

void BoundMethods(grpc::Service* service) {
  using ApiType = RpcServiceMethod::ApiType;
  for (const std::unique_ptr<RpcServiceMethod>& method : MethodsOf(*service)) {
    if (method == nullptr || method->handler() == nullptr) continue;
    const bool callback = method->api_type() == ApiType::CALL_BACK;
    if (!callback && method->api_type() != ApiType::SYNC) continue;
    const bool unary = method->method_type() == RpcMethod::NORMAL_RPC;
    if (!unary && method->method_type() != RpcMethod::SERVER_STREAMING) continue;
    const google::protobuf::MethodDescriptor* const descriptor = DescriptorOf(*method);
    Handler& handler = HandlerOf(*method);
    if (descriptor == nullptr || dynamic_cast<BoundedHandler*>(handler.get()) != nullptr) continue;
    if (callback && !unary) std::abort();  // `instead_` could not answer it
    handler = std::make_unique<BoundedHandler>(method->name(), ShapeOf(*descriptor->input_type()),
                                               callback, std::move(handler));
  }
}

}  // namespace kvatlas
