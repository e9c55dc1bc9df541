// Two hooks of gRPC. `CallProcessor` refuses calls before their handler, by certificate, token,
// policy and quota. `CutWhenRevoked` watches the calls that stream: it holds their quotas and cuts
// them when the policy or the files change. VerbOfMethod maps methods to the verbs of the policy.

#include "indexer/net/grpc_guard.h"

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <array>
#include <utility>

#include "indexer/net/grpc_status.h"

namespace kvatlas {
namespace {

constexpr char kChainProperty[] = "x509_pem_cert_chain";
constexpr char kCertificateProperty[] = "x509_pem_cert";
// gRPC 1.51 gives its AuthMetadataProcessor no address of the peer, and has no other hook that may
// refuse a call.
constexpr std::string_view kNoPeer;

struct MethodVerb {
  std::string_view prefix;  // of the method's full name
  Verb verb;
};

// The first prefix that matches counts, so longer ones stand before shorter ones of the same
// service.
constexpr std::array kMethodVerbs = {
    MethodVerb{"/grpc.health.", Verb::kHealth},
    MethodVerb{"/grpc.reflection.", Verb::kStatus},
    MethodVerb{"/kvatlas.v1.Holdings/", Verb::kPublish},
    MethodVerb{"/kvatlas.v1.Leaf/Find", Verb::kQuery},
    MethodVerb{"/kvatlas.v1.Leaf/Stats", Verb::kStatus},
    MethodVerb{"/kvatlas.v1.Leaf/Dump", Verb::kDump},
    MethodVerb{"/kvatlas.v1.Leaf/Explain", Verb::kDump},
    MethodVerb{"/kvatlas.v1.Sessions/", Verb::kDump},
    MethodVerb{"/kvatlas.v1.Hierarchy/Find", Verb::kQuery},
    MethodVerb{"/kvatlas.v1.Hierarchy/Stats", Verb::kStatus},
    MethodVerb{"/kvatlas.v1.Hierarchy/Dump", Verb::kDump},
    MethodVerb{"/kvatlas.v1.Frontend/Route", Verb::kRoute},
    MethodVerb{"/kvatlas.v1.Frontend/Report", Verb::kFeedback},
    MethodVerb{"/kvatlas.v1.Truth/Diagnose", Verb::kStatus},
    MethodVerb{"/kvatlas.v1.Truth/", Verb::kFeedback},
    MethodVerb{"/envoy.service.ext_proc.", Verb::kPick},
    MethodVerb{"/kv_indexer.v1.KVIndexer/Apply", Verb::kPublish},
    MethodVerb{"/kv_indexer.v1.KVIndexer/", Verb::kQuery},
};

std::string_view View(const grpc::string_ref& ref) { return {ref.data(), ref.size()}; }

// The scheme's letters may be of either case (RFC 9110); gRPC has metadata keys in lower case
// already.
std::string BearerOf(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return "";
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (lower != kScheme[i]) return "";
  }
  return std::string(authorization.substr(kScheme.size()));
}

std::string PropertyOf(const grpc::AuthContext& context, const char* name) {
  const std::vector<grpc::string_ref> values = context.FindPropertyValues(name);
  return values.empty() ? "" : std::string(values.front().data(), values.front().size());
}

// The client's certificate and its intermediates as PEM. OpenSSL's chain of a client does not
// contain the client's own certificate, so gRPC has it as a property of its own.
std::string ChainOf(const grpc::AuthContext& context) {
  std::string chain = PropertyOf(context, kCertificateProperty);
  if (!chain.empty()) chain += PropertyOf(context, kChainProperty);
  return chain;
}

// Two kinds of streams use the same method: workers' to a leaf (publish) and leaves' to a node
// (report). The hello message tells them apart, later; here the role does.
absl::Status CheckMethod(Security* security, const Identity& identity, Verb verb) {
  const bool reports = identity.role == IdentityRole::kLeaf || identity.role == IdentityRole::kNode;
  return security->CheckMethod(identity, verb == Verb::kPublish && reports ? Verb::kReport : verb,
                               kNoPeer);
}

// gRPC calls it for each call of a TLS connection, once the metadata is there and before a handler
// or a message. Not blocking, so it runs on gRPC's own thread and must not wait.
// 1. The verb by the method; health passes without a credential.
// 2. Authenticate certificate and token, else UNAUTHENTICATED, which is audited with the reason.
// 3. The verb by policy, else PERMISSION_DENIED.
// 4. Rates: questions and dumps take one of their quota. Streams are held by CutWhenRevoked, and
//    what is published by its acceptor.
class CallProcessor final : public grpc::AuthMetadataProcessor {
 public:
  explicit CallProcessor(std::shared_ptr<Security> security) : security_(std::move(security)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    const Verb verb = path == metadata.end() ? Verb::kOperate : VerbOfMethod(View(path->second));
    if (verb == Verb::kHealth) return grpc::Status::OK;
    const auto authorization = metadata.find("authorization");
    const auto identity = security_->Authenticate(
        ChainOf(*context),
        authorization == metadata.end() ? "" : BearerOf(View(authorization->second)));
    if (!identity.ok()) {
      security_->AuditUnknown(verb, kNoPeer, identity.status());
      return ToGrpcStatus(identity.status());
    }
    if (absl::Status bad = CheckMethod(security_.get(), **identity, verb); !bad.ok()) {
      return ToGrpcStatus(bad);
    }
    if (verb == Verb::kQuery || verb == Verb::kRoute || verb == Verb::kPick) {
      return ToGrpcStatus(security_->Take(**identity, QuotaKind::kQueries, 1, kNoPeer));
    }
    if (verb == Verb::kDump) {
      return ToGrpcStatus(security_->Take(**identity, QuotaKind::kDumps, 1, kNoPeer));
    }
    return grpc::Status::OK;
  }

 private:
  const std::shared_ptr<Security> security_;
};

// One per streaming call, destroyed by gRPC with the call, which releases the quotas. When its
// identity is no longer allowed, AddCall's callback cancels the call. The identity is taken once
// its metadata is there; CallProcessor has accepted it before.
class CutWhenRevoked final : public grpc::experimental::Interceptor {
 public:
  CutWhenRevoked(std::shared_ptr<Security> security, grpc::experimental::ServerRpcInfo* info)
      : security_(std::move(security)), info_(info) {}

  // Called at several points of a call; the first with metadata registers it. Every path must call
  // Proceed, or the call hangs. A call beyond a quota is cancelled here, since an interceptor
  // cannot refuse.
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (call_ == nullptr &&
        methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      grpc::ServerContextBase* const context = info_->server_context();
      CallCredentials credentials = CredentialsOf(*context);
      identity_ = IdentityOf(security_.get(), *context);
      const bool taken = Hold(context->peer());
      const auto cut = [context] { context->TryCancel(); };
      call_ = security_->AddCall(identity_, std::move(credentials.chain_pem),
                                 std::move(credentials.bearer), VerbOfMethod(info_->method()),
                                 context->peer(), cut);
      if (!taken) context->TryCancel();
    }
    methods->Proceed();
  }

 private:
  // One of the connection's quota, shared by its calls, and one of the streams'. False: beyond a
  // quota.
  bool Hold(const std::string& peer) {
    absl::StatusOr<Security::Held> connection = security_->HoldConnection(*identity_, peer);
    if (!connection.ok()) return false;
    absl::StatusOr<Security::Held> stream =
        security_->Hold(*identity_, {{QuotaKind::kStreams, 1}}, peer);
    if (!stream.ok()) return false;
    connection_ = *std::move(connection);
    stream_ = *std::move(stream);
    return true;
  }

  const std::shared_ptr<Security> security_;
  grpc::experimental::ServerRpcInfo* const info_;
  std::shared_ptr<const Identity> identity_;
  Security::Held connection_;
  Security::Held stream_;
  std::unique_ptr<Security::OpenCall> call_;
};

class CutterFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CutterFactory(std::shared_ptr<Security> security) : security_(std::move(security)) {}

  // Null: no interceptor. Unary calls are too short to be worth cutting; health checks have no
  // identity.
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    if (info->type() == grpc::experimental::ServerRpcInfo::Type::UNARY) return nullptr;
    if (VerbOfMethod(info->method()) == Verb::kHealth) return nullptr;
    // The acceptor of holdings registers its streams itself, with `AddCall`.
    if (VerbOfMethod(info->method()) == Verb::kPublish) return nullptr;
    return new CutWhenRevoked(security_, info);
  }

 private:
  const std::shared_ptr<Security> security_;
};

}  // namespace

Verb VerbOfMethod(std::string_view method) {
  for (const MethodVerb& one : kMethodVerbs) {
    if (method.starts_with(one.prefix)) return one.verb;
  }
  return Verb::kOperate;
}

// REQUIRES: credentials of TLS; gRPC takes no AuthMetadataProcessor on insecure ones.
void GuardCalls(const std::shared_ptr<Security>& security, grpc::ServerCredentials* credentials,
                grpc::ServerBuilder* builder) {
  if (!security->enforces()) return;
  credentials->SetAuthMetadataProcessor(std::make_shared<CallProcessor>(security));
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<CutterFactory>(security));
  builder->experimental().SetInterceptorCreators(std::move(creators));
}

CallCredentials CredentialsOf(const grpc::ServerContextBase& context) {
  CallCredentials credentials;
  if (const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context()) {
    credentials.chain_pem = ChainOf(*auth);
  }
  const auto& metadata = context.client_metadata();
  if (const auto found = metadata.find("authorization"); found != metadata.end()) {
    credentials.bearer = BearerOf(View(found->second));
  }
  return credentials;
}

// CallProcessor accepted the credential before; if it is refused by now, the call is anonymous and
// its checks fail.
std::shared_ptr<const Identity> IdentityOf(Security* security,
                                           const grpc::ServerContextBase& context) {
  static const auto* const anonymous =
      new std::shared_ptr<const Identity>(std::make_shared<Identity>());
  if (!security->enforces()) return *anonymous;
  const CallCredentials credentials = CredentialsOf(context);
  auto identity = security->Authenticate(credentials.chain_pem, credentials.bearer);
  return identity.ok() ? *identity : *anonymous;
}

}  // namespace kvatlas
